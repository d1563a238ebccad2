"""`example-clip`: scenes and their descriptions in one space."""
