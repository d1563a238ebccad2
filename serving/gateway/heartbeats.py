"""Reads the engines' heartbeats from Triton's metrics, for `/ready`."""

from __future__ import annotations

import httpx

from serving.heartbeat import Vitals, read_vitals

_TIMEOUT_S = 2.0


class Heartbeats:
    """One connection to Triton's metrics endpoint. Used on one event loop.

    Args:
        address: HOST:PORT; None where nobody told it, and then nothing is known.
    """

    def __init__(self, address: str | None) -> None:
        self._url = f"http://{address}/metrics" if address else None
        self._http = httpx.AsyncClient(timeout=_TIMEOUT_S, trust_env=False, verify=False)

    async def look(self) -> dict[str, Vitals]:
        """Vitals by model; empty when Triton does not answer."""
        if self._url is None:
            return {}
        try:
            answer = await self._http.get(self._url)
        except httpx.HTTPError:
            return {}
        return read_vitals(answer.text)

    async def close(self) -> None:
        """Close the connection."""
        await self._http.aclose()
