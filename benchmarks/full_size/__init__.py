"""Export of checkpoints of full size: seconds, memory, bytes."""
