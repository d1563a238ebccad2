"""Reads the engines' statistics from Triton's metrics, for `/ready`."""

from __future__ import annotations

import httpx

from serving.liveness.engine_stats import EngineStats, read_engine_stats

_TIMEOUT_S = 2.0


class StatsClient:
    """One connection to Triton's metrics endpoint. Used on one event loop.

    Args:
        address: HOST:PORT; None if not configured: there are no statistics then.
    """

    def __init__(self, address: str | None) -> None:
        self._url = f"http://{address}/metrics" if address else None
        self._http = httpx.AsyncClient(timeout=_TIMEOUT_S, trust_env=False, verify=False)

    async def read(self) -> dict[str, EngineStats]:
        """Statistics by model; empty if Triton does not respond."""
        if self._url is None:
            return {}
        try:
            response = await self._http.get(self._url)
        except httpx.HTTPError:
            return {}
        return read_engine_stats(response.text)

    async def close(self) -> None:
        """Close the connection."""
        await self._http.aclose()
