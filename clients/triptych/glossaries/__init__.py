"""Stored glossaries: their messages, the operations on them, and files of terms."""
