"""Causal language models over text alone."""
