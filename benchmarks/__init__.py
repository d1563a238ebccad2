"""Measurements: task quality of the examples, load tests, runs beside peers."""
