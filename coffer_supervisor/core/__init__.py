"""Decisions of the supervisor, sans I/O: events and the time go in, what is to be done comes out."""
