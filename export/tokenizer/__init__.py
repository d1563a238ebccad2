"""Tokenizer files of a checkpoint."""
