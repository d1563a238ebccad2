"""Batched decoding, independent of architectures, HTTP and Triton."""
