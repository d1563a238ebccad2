"""The scripts that trained the example checkpoints: `python -m export.examples.training.bert`."""
