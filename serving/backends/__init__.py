"""Triton seams: one folder a python-based backend, found by its name."""

ENVIRONMENT = "environment"
"""In an interpreter made for Triton: a link to the environment that its packages are from."""
