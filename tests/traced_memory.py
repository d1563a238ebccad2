"""A bound on the memory that Python and numpy allocate."""

import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def memory_below(limit_bytes: float) -> Iterator[None]:
    """Fails if what the block allocates is ever as large as the limit."""
    tracemalloc.start()
    try:
        yield
        _, most_bytes = tracemalloc.get_traced_memory()
        assert most_bytes < limit_bytes, f"{most_bytes} bytes, not below {limit_bytes}"
    finally:
        tracemalloc.stop()
