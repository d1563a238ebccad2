"""From a checkpoint to the graphs of its network, and to ONNX files."""
