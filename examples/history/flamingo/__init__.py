"""`history-flamingo`: pictures, and words for them that only the prompt defines."""
