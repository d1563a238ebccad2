"""How both worlds of sentences are split: by a keyed hash, the same in every process."""

from hashlib import blake2b
from typing import Literal

Split = Literal["train", "held_out", "compositional"]

PAIR_SHARE = 20  # one word × construction pair in so many is withheld from training
SENTENCE_SHARE = 50  # one sentence in so many is held out


def bucket(text: str, buckets: int) -> int:
    """A keyed hash of the text, modulo `buckets`."""
    digest = blake2b(text.encode(), digest_size=8, key=b"triptych").digest()
    return int.from_bytes(digest, "big") % buckets
