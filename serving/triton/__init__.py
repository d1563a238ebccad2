"""Find, start, supervise and heal a Triton server."""
