"""`example-vqa`: questions about rendered scenes."""
