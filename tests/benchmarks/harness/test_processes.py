"""Which part of the service a process is."""

from __future__ import annotations

import pytest

from benchmarks.harness.processes import part_of


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("/x/triton_python_backend_stub", "repository/m/1/model.py"), "engine"),
        (("/x/bin/tritonserver", "--model-repository=gateway"), "triton"),
        (("python", "-m", "triptych", "gateway", "--repository", "r"), "gateway"),
        (("python", "-m", "triptych", "triton"), "supervisor"),
        ((), "other"),
    ],
)
def test_processes_are_identified_by_their_arguments(arguments: tuple[str, ...], part: str) -> None:
    assert part_of(arguments) == part
