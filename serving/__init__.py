"""Serving: everything between a published bundle and a user's answer. Never imports torch."""
