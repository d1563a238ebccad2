"""Stateless graphs as they are served, by ONNX Runtime and by OpenVINO."""
