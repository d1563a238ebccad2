"""The systems of the course side by side: what `triptych compare` runs."""
