"""A model repository in object storage, which pods pull before they start (D106)."""
