"""What only the task `translate` needs."""
