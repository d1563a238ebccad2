"""The exported examples of the end-to-end tests."""

from tests.e2e.conftest import repository, shared

__all__ = ["repository", "shared"]
