"""Mixed load for a long time, with disconnects and killed processes: `make soak`."""
