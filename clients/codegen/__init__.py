"""Generators of the committed files that follow from the tasks; for development only."""
