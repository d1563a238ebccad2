"""`example-es-en`: Spanish to English, by a MarianMT network."""
