"""Scores, entities and windows of tasks that classify texts or tokens."""
