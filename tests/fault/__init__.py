"""Tests: fault."""
