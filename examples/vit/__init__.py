"""`example-vit`: the largest thing of a scene in 72 classes."""
