"""CUDA under the ONNX Runtime runner: memory, one stream, captured graphs."""
