"""Detectors beside those of `transformers`."""
