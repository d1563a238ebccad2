import serving  # noqa: F401  # switches ONNX Runtime's telemetry off
