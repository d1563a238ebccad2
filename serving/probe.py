"""Readiness of a Triton server, for orchestrators: `python3 -m serving.probe [HOST:PORT]`.

Triton's own `/v2/health/ready` is true of a server without any model. Exits with 0 if the server is
ready and serves at least one, else with 1 and the reason. Standard library only: it starts often.
"""

from __future__ import annotations

import json
import sys
import urllib.error
import urllib.request

TIMEOUT_S = 4.0


def problem(address: str) -> str | None:
    """Why a Triton server is not ready; None if it is.

    Args:
        address: `host:port` of its HTTP endpoint.
    """
    try:
        _get(f"http://{address}/v2/health/ready")
        models = json.loads(_get(f"http://{address}/v2/models/stats"))["model_stats"]
    except urllib.error.HTTPError as error:
        return f"{error.url} returned {error.code}"
    except OSError as error:
        return f"no response from {address}: {error}"
    return None if models else "no model is loaded"


def _get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=TIMEOUT_S) as response:
        body: bytes = response.read()
    return body


if __name__ == "__main__":
    found = problem(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:8000")
    sys.exit(found and f"not ready: {found}")
