"""The cases, by what they send; importing them registers them."""

from tests.attack.cases import connections, files, generation, oddities, rpc, texts, triton

__all__ = ["connections", "files", "generation", "oddities", "rpc", "texts", "triton"]
