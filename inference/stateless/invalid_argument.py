"""Errors that the backends of stateless graphs raise at load."""

from __future__ import annotations


class InvalidArgument(ValueError):
    """A configuration that cannot be served.

    Triton's python backend reports the type's name beside the message, so it has the status's.
    """
