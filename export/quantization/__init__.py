"""Int8 weights, activations and caches, and their calibration."""
