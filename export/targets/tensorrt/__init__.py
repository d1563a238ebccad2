"""Bundles for TensorRT: graphs that it parses, and the shapes that its plans are built for."""
