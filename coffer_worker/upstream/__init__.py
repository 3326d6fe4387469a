"""The room where the worker speaks to its upstream.

``pipe`` the seam every transport implements · ``stdio`` a child process · ``connection`` requests and answers on one
pipe · ``negotiate`` which era and revision · ``dispatch`` the same connection behind the SDK's own seam.
"""
