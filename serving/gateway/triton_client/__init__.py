"""Calls to Triton."""
