"""Chat templates, rendered within limits on work and memory."""
