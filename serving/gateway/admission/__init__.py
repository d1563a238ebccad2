"""API keys, limits on what is admitted, and turns at Triton."""
