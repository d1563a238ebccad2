"""Plans for TensorRT: built where they are served, kept under a name that says what they fit."""
