"""What both sides of a wire must agree on: frames, envelopes, names, errors, paths, discovery.

Owns shared vocabulary and pure functions. Never imports a side (supervisor, worker, cli) nor an I/O library.
"""
