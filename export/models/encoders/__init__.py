"""Encoders of texts: tokens to vectors, labels or masked tokens."""
