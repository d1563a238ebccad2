"""The gate: graphs against the network in PyTorch."""
