"""One worker, as a program: `Share` says what it has in common with the others.

It runs in a fresh interpreter, because gRPC does not survive a fork.
"""

from __future__ import annotations

import sys

from triptych.garbage import without_collection

with without_collection():
    from serving.gateway.server.run_server import run
    from serving.gateway.server.worker_context import Share
    from serving.gateway.server.worker_process import Start
    from serving.logs import configure_logs

_STDIN = 0


def main() -> int:
    """Serve until the supervisor says otherwise.

    Returns:
        The exit code of a worker that could not start.
    """
    try:
        start = Start.read(_STDIN)
    except EOFError:
        return 1
    configure_logs(as_json=start.settings.json_output, worker=start.number + 1)
    return run(start.settings, Share(start, _STDIN))


if __name__ == "__main__":
    sys.exit(main())
