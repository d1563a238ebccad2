"""The `onnxruntime` backend for Tritons that have no native one."""
