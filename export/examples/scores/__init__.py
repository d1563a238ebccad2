"""What an example answers right, on data that its training never shows."""
