"""`triptych train`: a small model of one's own from files of texts, or of pictures."""
