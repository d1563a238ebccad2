"""Detectors that read an image together with the text of what to look for."""
