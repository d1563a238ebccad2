"""Lowering a module to ONNX files."""
