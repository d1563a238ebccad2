"""Scans of a JPEG file, counted before it is decoded (ITU-T T.81, annex B).

Each scan of a progressive file may cover the whole image in a hundred bytes, so that the time of
decoding is not bounded by the sizes of the file and of the image.
"""

from __future__ import annotations

import re

MAX_SCANS = 100
"""Encoders write 10, those that search for the smallest file up to twice as many."""
_START, _END, _SCAN = 0xD8, 0xD9, 0xDA
_MARKER = re.compile(rb"\xff+[^\x00\xff]")
_ALONE = {0x01, _START, *range(0xD0, 0xD8)}
"""Markers without a length behind them."""


def has_too_many_scans(data: bytes) -> bool:
    """Whether a JPEG file has more than `MAX_SCANS` scans.

    Markers are found as libjpeg finds them: what is between a segment and the next marker is
    skipped, and what a segment holds (a thumbnail, say) is none.
    """
    if data.count(b"\xff\xda") <= MAX_SCANS:
        return False
    scans, place = 0, 0
    while found := _MARKER.search(data, place):
        kind, place = data[found.end() - 1], found.end()
        if kind == _END:
            return False
        if kind in _ALONE:
            continue
        scans += kind == _SCAN
        if scans > MAX_SCANS:
            return True
        place += max(2, int.from_bytes(data[place : place + 2], "big"))
    return False
