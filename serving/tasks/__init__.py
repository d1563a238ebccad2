"""What a user asks for, as pure functions: request to model calls, outputs to response."""
