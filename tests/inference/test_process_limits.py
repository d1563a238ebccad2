"""What a process may use, and the processor that it runs on."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import psutil
import pytest
import torch
import typer

from inference import process_limits

CORES = 16
UNLIMITED = str(2**63 - 4096)
"""Bytes; of version 1, which has no word for it."""


class Groups:
    """Hierarchies of control groups, mounted below a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._proc = folder / "proc"
        self._proc.mkdir()
        (folder / "meminfo").write_text("MemTotal: 9000 kB\nMemAvailable: 8000 kB\n")
        (self._proc / "mountinfo").write_text("1 0 8:1 / / rw,relatime shared:1 - ext4 /dev/a rw\n")
        (self._proc / "cgroup").write_text("")

    def mount(self, controllers: str, path: str, root: str = "/") -> Path:
        """One more hierarchy, with the process at a path of it.

        Args:
            controllers: Of version 1; empty: version 2.
            root: What of the hierarchy is mounted.

        Returns:
            Where it is mounted.
        """
        folder = self._folder / (controllers or "unified")
        folder.mkdir()
        kind = f"cgroup cgroup rw,{controllers}" if controllers else "cgroup2 cgroup2 rw"
        with (self._proc / "mountinfo").open("a") as file:
            file.write(f"2 1 0:2 {root} {folder} rw,nosuid shared:9 - {kind}\n")
        with (self._proc / "cgroup").open("a") as file:
            file.write(f"{4 if controllers else 0}:{controllers}:{path}\n")
        return folder


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Groups:
    monkeypatch.setattr(process_limits, "_PROCESS", tmp_path / "proc")
    monkeypatch.setattr(process_limits, "_MEMORY", tmp_path / "meminfo")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(CORES)))
    return Groups(tmp_path)


def write(folder: Path, **contents: str) -> None:
    """Files of a control group; two underscores stand for a dot."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in contents.items():
        (folder / name.replace("__", ".")).write_text(f"{text}\n")


@pytest.mark.parametrize(
    ("quota", "cores"),
    [(10_000, 1), (50_000, 1), (100_000, 1), (150_000, 2), (400_000, 4), (9_900_000, CORES)],
)
@pytest.mark.parametrize("version", [1, 2])
def test_a_quota_is_rounded_up_to_whole_cores(
    groups: Groups, version: int, quota: int, cores: int
) -> None:
    if version == 2:
        write(groups.mount("", "/a.slice") / "a.slice", cpu__max=f"{quota} 100000")
    else:
        folder = groups.mount("cpu,cpuacct", "/a") / "a"
        write(folder, cpu__cfs_quota_us=str(quota), cpu__cfs_period_us="100000")
    assert process_limits.usable_cores() == cores


def test_the_smallest_quota_of_the_groups_above_counts(groups: Groups) -> None:
    mount = groups.mount("", "/pods/pod/container")
    write(mount / "pods", cpu__max="800000 100000")
    write(mount / "pods/pod", cpu__max="25000 10000")
    write(mount / "pods/pod/container", cpu__max="max 100000")
    write(mount / "pods/other", cpu__max="1000 100000")  # not above it
    assert process_limits.usable_cores() == 3


def test_no_quota_leaves_what_the_affinity_allows(
    groups: Groups, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(groups.mount("", "/"), cpu__max="max 100000")
    write(groups.mount("cpu", "/"), cpu__cfs_quota_us="-1", cpu__cfs_period_us="100000")
    groups.mount("cpuset", "/missing")
    assert process_limits.usable_cores() == CORES
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3})
    assert process_limits.usable_cores() == 1


def test_a_container_sees_its_own_group_at_the_mount(groups: Groups) -> None:
    """Without a namespace of its own, `/proc/self/cgroup` has the path on the host."""
    write(groups.mount("", "/docker/b", root="/elsewhere"), cpu__max="300000 100000")
    assert process_limits.usable_cores() == 3
    mount = groups.mount("cpu", "/docker/a", root="/docker/a")
    write(mount, cpu__cfs_quota_us="200000", cpu__cfs_period_us="100000")
    assert process_limits.usable_cores() == 2


def test_a_group_below_the_one_that_is_mounted(groups: Groups) -> None:
    mount = groups.mount("", "/docker/a/inner", root="/docker/a")
    write(mount / "inner", cpu__max="200000 100000")
    assert process_limits.usable_cores() == 2


def test_all_cores_where_the_system_does_not_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_limits, "_PROCESS", tmp_path / "missing")
    assert process_limits.usable_cores() == len(os.sched_getaffinity(0))


def test_threads_are_those_of_the_model_where_cores_suffice(groups: Groups) -> None:
    write(groups.mount("", "/"), cpu__max="400000 100000")
    assert [process_limits.thread_count(count) for count in (1, 2, 4, 5, 64)] == [1, 2, 4, 4, 4]
    assert process_limits.thread_count(0) == process_limits.physical_cores() <= 4


def test_hyper_threads_count_once(
    groups: Groups, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_limits, "_SIBLINGS", str(tmp_path / "cpu{}"))
    for core in range(CORES):
        (tmp_path / f"cpu{core}").write_text(f"{core % 8},{core % 8 + 8}\n")
    assert process_limits.physical_cores() == 8
    write(groups.mount("", "/"), cpu__max="1000000 100000")
    assert process_limits.physical_cores() == 8
    write(tmp_path / "unified", cpu__max="600000 100000")
    assert process_limits.physical_cores() == 6
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 8, 1})
    assert process_limits.physical_cores() == 2


def test_memory_is_what_the_smallest_limit_leaves(groups: Groups) -> None:
    assert process_limits.available_bytes() == 8000 << 10
    mount = groups.mount("", "/pod/container")
    write(mount / "pod", memory__max="600000", memory__current="500000")
    write(mount / "pod", memory__stat="anon 1\ninactive_file 7000")
    write(mount / "pod/container", memory__max="max", memory__current="400000")
    assert process_limits.available_bytes() == 107_000
    write(mount / "pod/container", memory__max="450000")
    assert process_limits.available_bytes() == 50_000


def test_memory_of_version_1(groups: Groups) -> None:
    mount = groups.mount("memory", "/a/b")
    write(mount, memory__limit_in_bytes=UNLIMITED, memory__usage_in_bytes="900000")
    write(mount / "a/b", memory__limit_in_bytes="6000", memory__usage_in_bytes="5000")
    write(mount / "a/b", memory__stat="inactive_file 10\ntotal_inactive_file 70")
    assert process_limits.available_bytes() == 1070
    write(mount / "a/b", memory__limit_in_bytes=UNLIMITED)
    assert process_limits.available_bytes() == 8000 << 10


def test_a_group_over_its_limit_has_nothing_left(groups: Groups) -> None:
    write(groups.mount("", "/"), memory__max="5000", memory__current="6000")
    assert process_limits.available_bytes() == 0


def test_all_memory_where_the_system_does_not_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_limits, "_PROCESS", tmp_path / "missing")
    monkeypatch.setattr(process_limits, "_MEMORY", tmp_path / "missing")
    assert process_limits.available_bytes() == psutil.virtual_memory().total


@pytest.mark.parametrize("run", ["export.pipeline.cli:export", "export.report.command:verify"])
def test_an_export_takes_no_more_threads_than_cores(
    run: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_to: list[int] = []
    monkeypatch.setattr(torch, "get_num_threads", lambda: 16)
    monkeypatch.setattr(torch, "set_num_threads", set_to.append)
    monkeypatch.setattr(process_limits, "usable_cores", lambda: 3)
    module, name = run.split(":")
    with pytest.raises(typer.Exit):
        getattr(import_module(module), name)(str(tmp_path / "missing"))
    assert set_to == [3]


def test_nothing_else_counts_cores() -> None:
    """It would count those that a container may not use."""
    root = Path(process_limits.__file__).parents[1]
    counts = re.compile(r"\b(cpu_count|sched_getaffinity)\(")
    found = [
        file.relative_to(root)
        for folder in ("clients", "export", "inference", "serving")
        for file in (root / folder).rglob("*.py")
        if counts.search(file.read_text(encoding="utf-8"))
    ]
    assert found == [Path("inference/process_limits.py")]


def test_a_process_on_one_core_has_one_thread() -> None:
    program = "from inference.process_limits import *; print(usable_cores(), thread_count(2))"
    core = min(os.sched_getaffinity(0))
    command = ["taskset", "-c", str(core), sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1", "1"]


@pytest.mark.parametrize(
    ("flags", "kind"),
    [
        ("fma avx2 avx512f avx512_vnni amx_bf16 amx_tile amx_int8", "AMX"),
        ("fma avx2 avx512f avx_vnni avx512_vnni", "AVX-512 VNNI"),
        ("fma avx2 avx_vnni", "AVX-VNNI"),
        ("fma avx2 avx512f", "AVX-512"),
        ("fma avx2", "AVX2"),
    ],
)
def test_kind_is_the_best_of_the_instructions(
    flags: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_limits, "_CPUINFO", tmp_path / "cpuinfo")
    lines = f"model name\t: AMD avx512f\nflags\t\t: fpu {flags}\n"
    (tmp_path / "cpuinfo").write_text(lines * 2)
    assert (process_limits.processor_name(), process_limits.processor_kind()) == (
        "AMD avx512f",
        kind,
    )


def test_kind_of_other_processors_is_their_architecture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_limits, "_CPUINFO", tmp_path / "missing")
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    assert process_limits.processor_kind() == "ARM64"
