"""The stack of the end-to-end tests."""

from tests.e2e.conftest import repository, shared, stack

__all__ = ["repository", "shared", "stack"]
