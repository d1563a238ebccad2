"""`triptych train`: a user's own data to a checkpoint in Hugging Face's format."""
