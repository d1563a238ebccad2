"""Measure the example checkpoints by `transformers` or `torch.nn` and write their model cards."""
