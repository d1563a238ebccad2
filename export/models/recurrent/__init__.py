"""Recurrent networks over text: encoders, language models and translators."""
