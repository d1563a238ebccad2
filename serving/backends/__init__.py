"""Triton seams: one folder a python-based backend, found by its name."""
