"""Reading a checkpoint: configuration, weights, and the settings that its files hold."""
