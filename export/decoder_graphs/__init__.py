"""What generators share: decoders of either kind, and the graphs that the engine calls."""
