"""From a checkpoint to a published bundle: the steps, and the command."""
