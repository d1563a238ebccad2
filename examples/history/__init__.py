"""The systems of the course, from recurrence to few-shot multimodal models: examples/history."""
