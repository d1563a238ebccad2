"""`triptych batch` on a Ray cluster of three nodes, of which one, or a worker, is killed.

Run as `cluster_program node|worker OUTPUT ARGUMENTS…`, with the arguments of the command line.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

import psutil

os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # loopback
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

from ray.cluster_utils import Cluster

from triptych.cli import run

PARTS = 5
"""Files of the output, before something is killed."""


def main() -> int:
    """The exit code; 3: the run had ended before something was killed."""
    what, output, *arguments = sys.argv[1:]
    head = {"num_cpus": 1, "object_store_memory": 100 << 20, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    nodes = [cluster.add_node(num_cpus=1, object_store_memory=100 << 20) for _ in range(2)]
    cluster.wait_for_nodes()
    killed: list[bool] = []

    def kill() -> None:
        while len(list(Path(output).glob("part-*"))) < PARTS:
            time.sleep(0.01)
        if what == "node":
            cluster.remove_node(nodes[0], allow_graceful=False)
        else:
            started = psutil.Process().children(recursive=True)
            next(one for one in started if "MapWorker" in " ".join(one.cmdline())).kill()
        killed.append(not (Path(output) / "summary.json").exists())

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    code = run([*arguments, "--address", cluster.address])
    killer.join(10)
    cluster.shutdown()
    return code if killed == [True] else 3


if __name__ == "__main__":
    sys.exit(main())
