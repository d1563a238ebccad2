"""One paper per file; every file has the same order of sections and ends in `ARCHITECTURE`."""
