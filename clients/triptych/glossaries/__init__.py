"""Stored glossaries: their messages, and files of terms."""
