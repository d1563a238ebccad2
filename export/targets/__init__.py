"""Runtimes and devices: what a bundle needs on each."""
