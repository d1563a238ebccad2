"""The runner over ONNX Runtime."""
