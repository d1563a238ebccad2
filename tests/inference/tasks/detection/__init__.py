"""Detectors that need more than vectors of labels."""
