"""`history-perceiver-text`: masked bytes."""
