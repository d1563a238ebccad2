"""Spanish and English sentences of an invented world, and the splits of all texts."""
