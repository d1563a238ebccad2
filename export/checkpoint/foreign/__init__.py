"""Formats of other libraries' translators, converted to folders in Hugging Face format."""
