"""Boxes that a generator writes."""
