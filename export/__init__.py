"""From a checkpoint to a verified, published bundle. The only package that imports torch."""
