"""Blocks that more than one model is built of."""
