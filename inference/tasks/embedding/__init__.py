"""Calls of embedding models, and their results kept for later requests."""
