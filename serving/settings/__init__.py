"""Settings of the gateway and of Triton: flags and environment variables."""
