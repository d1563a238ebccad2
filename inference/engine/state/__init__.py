"""Memory of live sequences: arenas, buffers, stored prefixes, and their sizes in bytes."""
