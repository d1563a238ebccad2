"""`example-gpt`: tasks that only the examples in a prompt define."""
