"""The cases, by what they send; importing them registers them."""

from tests.attack.cases import (
    connections,
    documents,
    generation,
    images,
    oddities,
    rpc,
    texts,
    triton,
)

__all__ = [
    "bodies",
    "browsers",
    "connections",
    "documents",
    "generation",
    "images",
    "oddities",
    "rpc",
    "stores",
    "texts",
    "triton",
]
