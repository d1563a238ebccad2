"""Bundles for a CUDA device: graphs of operators and types that ONNX Runtime has kernels for."""
