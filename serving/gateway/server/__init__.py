"""Several processes that serve as one gateway: one address, one admission, one `/metrics`."""
