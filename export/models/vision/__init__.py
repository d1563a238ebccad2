"""Image encoders and image classifiers."""
