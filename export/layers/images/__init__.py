"""Layers of image towers: convolutions, norms of batches, patches, heads over grids."""
