"""`example-captioner`: captions of scenes by a ViT and GPT-2."""
