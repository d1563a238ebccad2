"""From a checkpoint to a verified, published bundle. The only package that imports torch."""

import serving  # noqa: F401  # switches ONNX Runtime's telemetry off
