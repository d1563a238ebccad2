"""Measurements: task quality of the examples, load tests, runs beside peers."""

import serving  # noqa: F401  # switches ONNX Runtime's telemetry off
