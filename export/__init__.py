"""From a checkpoint to a verified, published bundle. The only package that imports torch."""

import inference  # noqa: F401  # switches ONNX Runtime's telemetry off
