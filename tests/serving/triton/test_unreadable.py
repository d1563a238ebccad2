"""A repository that the server's user may not read: it is named, awaited, then served."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.serving.triton.tiny import publish_times, wait_until

WITHOUT_RIGHTS = ("setpriv", "--bounding-set=-dac_override,-dac_read_search")
"""Root, to whom the rights of files apply."""

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(
        os.getuid() != 0 or shutil.which("setpriv") is None, reason="needs root and setpriv"
    ),
]


@pytest.fixture
def supervisor(repository: Path) -> Iterator[subprocess.Popen[bytes]]:
    publish_times(repository, "twice", 2)
    os.chown(repository, 65534, 65534)
    repository.chmod(0o700)
    flags = ("--repository", str(repository), "--grpc-port", "0", "--metrics-port", "0")
    command = [*WITHOUT_RIGHTS, sys.executable, "-m", "triptych", "triton", *flags]
    with (repository.parent / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    yield process
    process.terminate()
    assert process.wait(60) == 0


def test_unreadable_repository_is_awaited(
    supervisor: subprocess.Popen[bytes], repository: Path
) -> None:
    log = repository.parent / "log"
    wait_until(lambda: "Triton ready with 0 models" in log.read_text())
    [line] = [line for line in log.read_text().splitlines() if "skipped all bundles" in line]
    assert "user root cannot read" in line
    assert "(mode 0700 of nobody)" in line
    assert supervisor.poll() is None
    repository.chmod(0o755)
    wait_until(lambda: "twice: serving version 1" in log.read_text())
