"""`history-perceiver`: classes of pictures."""
