"""The example world: generators, training scripts and the small checkpoints they made."""
