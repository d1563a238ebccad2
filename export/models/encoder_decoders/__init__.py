"""Transformers that read a source text and write a target text."""
