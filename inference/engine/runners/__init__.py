"""The protocol between search and model, and its implementations."""
