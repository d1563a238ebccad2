"""Work that cannot be cancelled, in processes that can be ended."""
