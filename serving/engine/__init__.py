"""Batched decoding over ONNX Runtime; knows no architecture, no HTTP and no Triton."""
