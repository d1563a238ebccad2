"""Limits of documents: what may be unpacked, read and translated."""

from __future__ import annotations

MAX_SEGMENTS = 10_000
"""Texts of one document."""
MAX_UNPACKED_BYTES = 100_000_000
"""All files of an archive together."""
MAX_XML_BYTES = 10_000_000
"""The files of an archive that are parsed; a parsed one takes several times its size."""
MAX_ENTRIES = 5_000
"""Files of an archive."""
