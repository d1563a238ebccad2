"""Random requests against a running stack: `make fuzz`."""
