"""Whether processes still work: heartbeats and statistics."""
