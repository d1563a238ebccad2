"""Bundles on disk: the manifest, how it is read, and the repository of versions."""
