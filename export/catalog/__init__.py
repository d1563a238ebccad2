"""`triptych catalog`: well-known checkpoints, and whether this version exports them."""
