"""What a server is made of: ports, runtime files, stubs, configurations, installations."""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import shutil
import site
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from pydantic import ValidationError

from inference import process_limits
from inference.errors import BundleError, SetupError
from serving.ports import free_ports, host_port, listening, reachable, reserved
from serving.settings.command_settings import FrontSettings
from serving.triton import installation, runtime_files
from serving.triton.bundle_loader import BundleLoader, Serving
from serving.triton.control import VersionPolicy, model_config
from serving.triton.installation import BACKENDS, Installation, find_installation
from serving.triton.lifetime import ServerLifetime, ServerProcess, command
from serving.triton.runtime_files import SHARED_MEMORY, TEMPORARY, RuntimeFiles, is_plain
from serving.triton.stubs import Stubs, StubWatch
from tests.inference.tiny_models import publish
from tests.serving.triton.tiny import CONFIG, publish_times, settings, times

needs_ipv6 = pytest.mark.skipif(
    not Path("/proc/net/if_inet6").exists(), reason="the kernel has no IPv6"
)


@pytest.fixture
def files(tmp_path: Path, short_folder: Path) -> Iterator[RuntimeFiles]:
    made = RuntimeFiles(tmp_path, short_folder)
    yield made
    made.remove()


# Ports


def test_port_in_use_is_named() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        with pytest.raises(SetupError, match=f"127.0.0.1:{port} for gRPC"):
            free_ports("127.0.0.1", {"HTTP": 0, "gRPC": port})


def test_chosen_ports_differ_and_wanted_ones_are_kept() -> None:
    wanted = free_ports("127.0.0.1", {"any": 0})["any"]
    chosen = free_ports("127.0.0.1", {"HTTP": 0, "gRPC": wanted, "metrics": 0})
    assert chosen["gRPC"] == wanted
    assert len(set(chosen.values())) == 3


def test_port_that_another_will_listen_on_is_not_chosen() -> None:
    taken = {port for port in range(1 << 16) if port // 2 % 2}  # the system prefers even ports
    for _ in range(20):
        chosen = free_ports("127.0.0.1", {"gRPC": 0, "metrics": 0}, taken)
        assert not taken & set(chosen.values())


@pytest.mark.parametrize(
    ("host", "message"),
    [
        ("a..b", r"cannot listen on 'a\.\.b' for gRPC: no name of a host: give an address"),
        ("203.0.113.7", "203.0.113.7:0 for gRPC: Cannot assign .*: give an address of this"),
        ("2001:db8::7", r"\[2001:db8::7\]:0 for gRPC: .*: give an address of"),
    ],
)
def test_address_of_another_machine_is_refused_with_fitting_advice(host: str, message: str) -> None:
    with pytest.raises(SetupError, match=message) as refused:
        free_ports(host, {"gRPC": 0})
    assert "stop what listens" not in refused.value.message
    for listen in (listening, reserved):
        with pytest.raises(SetupError, match=message):
            listen(host, 0, "gRPC")


@needs_ipv6
def test_all_addresses_of_ipv6_are_those_of_ipv4_too() -> None:
    with listening("::", 0, "HTTP") as listener:
        port = listener.getsockname()[1]
        for host in ("127.0.0.1", "::1"):
            socket.create_connection((host, port), timeout=5).close()
        with pytest.raises(SetupError, match=rf"\[::\]:{port} for gRPC: Address already in use"):
            free_ports("::", {"gRPC": port})
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(SetupError):
        listening("::", taken.getsockname()[1], "HTTP")


@pytest.mark.parametrize(
    ("host", "url", "own"),
    [
        ("127.0.0.1", "127.0.0.1:80", "127.0.0.1"),
        ("0.0.0.0", "0.0.0.0:80", "127.0.0.1"),
        ("::1", "[::1]:80", "::1"),
        ("::", "[::]:80", "::1"),
        ("0::0", "[0::0]:80", "::1"),
        ("a.example", "a.example:80", "a.example"),
    ],
)
def test_addresses_are_written_as_in_urls(host: str, url: str, own: str) -> None:
    assert host_port(host, 80) == url
    assert reachable(host) == own


def test_brackets_of_a_url_are_no_part_of_an_address(tmp_path: Path) -> None:
    assert settings(tmp_path, host="[::1]").host == FrontSettings(host="[::1]").host == "::1"
    with pytest.raises(ValidationError):
        FrontSettings(host="")


@pytest.mark.parametrize(
    ("host", "grpc", "metrics"),
    [
        ("localhost", "127.0.0.1", "127.0.0.1"),
        ("::1", "[::1]", "ipv6:::1"),
        ("0.0.0.0", "0.0.0.0", "0.0.0.0"),
    ],
)
def test_triton_gets_addresses_as_its_servers_read_them(
    host: str, grpc: str, metrics: str, tmp_path: Path, files: RuntimeFiles
) -> None:
    found = command(find_installation(), settings(tmp_path, host=host), {}, files)
    assert {f"--grpc-address={grpc}", f"--metrics-address={metrics}"} < set(found)


# RuntimeFiles


def test_stale_runtime_files_are_removed_and_live_ones_kept(
    tmp_path: Path, short_folder: Path
) -> None:
    memory, temporary = tmp_path / "shm", short_folder
    memory.mkdir()
    living = RuntimeFiles(memory, temporary)
    region = memory / f"{living.prefix}region"
    strange = memory / "other_lock"
    dead = [memory / "triptych_dead_lock", memory / "triptych_dead_region"]
    for path in (region, strange, *dead):
        path.touch()
    backend = temporary / "triptych_dead_backends" / "python"
    backend.mkdir(parents=True)
    RuntimeFiles(memory, temporary).remove()
    assert not any(path.exists() for path in (*dead, backend.parent))
    assert region in living.paths()
    assert living.backends.parent == living.socket.parent in living.paths()
    living.remove()
    assert [path for folder in (memory, temporary) for path in folder.iterdir()] == [strange]


def test_files_are_kept_whose_lock_another_finds_before_it_is_taken(
    tmp_path: Path, short_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, others = fcntl.flock, ["remove"]

    def late(file: int, operation: int) -> None:
        if operation == fcntl.LOCK_EX and others:
            others.pop()
            runtime_files.remove_stale(tmp_path, short_folder)
            assert not list(tmp_path.iterdir()), "it was there, and not held"
        lock(file, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    RuntimeFiles(tmp_path, short_folder)
    assert list(tmp_path.glob("*_lock"))


def test_files_of_an_interrupted_start_or_stop_are_removed(
    tmp_path: Path, short_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(place: object, name: str, call: Callable[[], object]) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(place, name, lambda *_, **__: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                call()

    interrupt(Path, "mkdir", lambda: RuntimeFiles(tmp_path, short_folder))
    assert not [*tmp_path.iterdir(), *short_folder.iterdir()]
    files = RuntimeFiles(tmp_path, short_folder)
    interrupt(shutil, "rmtree", files.remove)
    assert files.paths()
    files.remove()
    files.folder.mkdir()  # by a thread that was loading a model
    files.remove()
    assert not [*tmp_path.iterdir(), *short_folder.iterdir()]


def test_memory_of_dead_stubs_is_that_of_regions_without_a_process(
    tmp_path: Path, files: RuntimeFiles
) -> None:
    held, dead, other = regions = [tmp_path / f"{files.prefix}{name}" for name in (1, 12, 2)]
    for region in regions:
        region.write_bytes(bytes(1 << 20))
    server = ServerLifetime(settings(tmp_path), print)
    assert server.shared_memory() == (0, 0), "it is not started"
    server._files, server._process = files, SimpleNamespace(pid=os.getpid())
    sleep = [sys.executable, "-c", "import time; print(flush=True); time.sleep(60)"]
    with subprocess.Popen([*sleep, held.name], stdout=subprocess.PIPE) as stub:
        assert stub.stdout is not None
        stub.stdout.readline()  # its command line is there
        found = server.shared_memory()
        stub.kill()
    size = {region: region.stat().st_blocks * 512 for region in regions}
    status = os.statvfs(tmp_path)
    assert found == (size[dead] + size[other], status.f_blocks * status.f_frsize)
    assert size[held] >= 1 << 20
    assert server.shared_memory()[0] == sum(size.values())


def test_memory_of_a_dead_process_is_freed_while_triton_maps_it(
    tmp_path: Path, short_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 100.0
    monkeypatch.setattr("serving.triton.lifetime.time", SimpleNamespace(monotonic=lambda: now_s))
    files = RuntimeFiles(SHARED_MEMORY, short_folder)
    held, dead = [SHARED_MEMORY / f"{files.prefix}{name}" for name in ("held", "dead")]
    server = ServerLifetime(settings(tmp_path), print)
    server._files, server._process = files, SimpleNamespace(pid=os.getpid())
    size = 1 << 20
    sleep = ["bash", "-c", f"sleep 60; exec stub {held.name}"]  # as Triton starts one
    with contextlib.ExitStack() as stack, subprocess.Popen(sleep) as stub:
        stack.callback(files.remove)
        maps = []
        for region in (held, dead):
            region.write_bytes(b"1" * size)
            maps.append(mmap.mmap(stack.enter_context(region.open("r+b")).fileno(), size))
        server._stubs.dead = 1
        server.free_memory()
        now_s += 10
        server.free_memory()
        assert dead.exists(), "Triton may still use it"
        now_s += 0.1
        server.free_memory()
        assert [path.name for path in files.paths() if path.parent == SHARED_MEMORY] == [
            held.name,
            f"{files.prefix}lock",
        ]
        assert [each[:] for each in maps] == [b"1" * size, bytes(size)]
        files.free_region(dead.name)  # as if Triton had removed it since it was seen
        assert server.shared_memory()[0] == 0
        stub.kill()


def test_only_plain_paths_are_given_as_they_are(tmp_path: Path, files: RuntimeFiles) -> None:
    plain, strange = tmp_path / "a-b_c.d+e@f%g", [tmp_path / each for each in ("a b", "é", "$a;")]
    assert files.plain(plain) == plain
    links = [files.plain(path) for path in strange]
    assert [link.readlink() for link in links] == strange
    assert all(link.parent == files.folder for link in links)
    assert files.plain(strange[1]) == links[1]
    files.remove()
    assert not files.folder.exists()


def test_temporary_folder_with_another_path_is_not_used(tmp_path: Path, short_folder: Path) -> None:
    strange = short_folder / "é"
    strange.mkdir()
    files = RuntimeFiles(tmp_path, strange)
    assert files.folder.parent == TEMPORARY
    files.remove()
    assert not files.folder.exists()


def test_folder_that_triton_cannot_use_is_refused_by_name(
    tmp_path: Path, short_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.statvfs(short_folder)
    fields = [*real[:8], os.ST_NOEXEC, real[9]]
    with monkeypatch.context() as patch:
        patch.setattr(os, "statvfs", lambda path: os.statvfs_result(fields))
        with pytest.raises(SetupError, match=rf"{short_folder} is mounted with noexec.* TMPDIR"):
            RuntimeFiles(tmp_path, short_folder)
    monkeypatch.setattr(runtime_files, "TEMPORARY", tmp_path / "missing")
    with pytest.raises(SetupError, match="missing cannot be written"):
        RuntimeFiles(tmp_path, short_folder)
    assert not list(tmp_path.iterdir()), "a lock is left behind"


def test_folders_that_triton_makes_are_removed_where_they_are_empty(
    tmp_path: Path, short_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime_files, "TEMPORARY", short_folder)
    names = ("before", "empty", "used", "after")
    before, empty, used, after = (short_folder / f"python_env_{name}" for name in names)
    files = RuntimeFiles(tmp_path, short_folder)
    before.mkdir()
    with files.noting_environments():
        empty.mkdir()
        (used / "lib").mkdir(parents=True)
    after.mkdir()
    os.close(files.lock)  # as a killed supervisor leaves it
    RuntimeFiles(tmp_path, short_folder).remove()
    assert set(short_folder.iterdir()) == {before, used, after}


@pytest.mark.parametrize(
    ("lines", "cause"),
    [
        (
            ["terminate called after throwing an instance of 'std::runtime_error'",
             "  what():  Failed to create folder", "Signal (6) received."],
            "Failed to create folder",
        ),
        (['E0101 1 a.cc:1] "first"', "Signal (11) received."], "Signal (11) received."),
        (['E0101 1 a.cc:1] "first"', 'I0101 1 b.cc:2] "later"'], 'E0101 1 a.cc:1] "first"'),
        (['E0101 1 a.cc:1] "first"', "Signal (11) received.", "end"], "Signal (11) received."),
        (['E0101 1 a.cc:1] "first"', "end"], "killed by SIGKILL"),
        (["last", "end"], "killed by SIGKILL"),
        (['E0101 1 server.cc:241] "CudaDriverHelper has not been initialized."', "last"], "last"),
        ([], "it printed nothing"),
    ],
)  # fmt: skip
def test_reason_of_an_end_is_the_exception_then_the_signal_then_an_error_then_the_last_line(
    lines: list[str], cause: str, tmp_path: Path, files: RuntimeFiles
) -> None:
    script = 'for line; do test "$line" = end && kill -9 $$; echo "$line"; done'
    command = ["/bin/sh", "-c", script, "sh", *lines]
    process = ServerProcess(Installation(Path(command[0]), tmp_path, ()), command, files, len)
    while process.is_alive:
        time.sleep(0.01)
    process._reader.join()
    assert process.last_error.strip() == cause


def test_repository_of_triton_contains_the_loaded_versions_alone(
    tmp_path: Path, files: RuntimeFiles
) -> None:
    model = tmp_path / "other name" / "model"
    for version in (1, 2, 3):
        (model / str(version)).mkdir(parents=True)

    def versions() -> set[str]:
        return {path.name for path in (files.models / "model").iterdir()}

    files.link_versions(model, [2, 1])
    assert versions() == {"config.pbtxt", "1", "2"}
    files.link_versions(model, [2])
    assert versions() == {"config.pbtxt", "2"}
    assert (files.models / "model" / "2").samefile(model / "2")
    files.link_versions(model, [])
    assert list(files.models.iterdir()) == []


# Stubs


def _runs(listed: Callable[[], Stubs]) -> Callable[[int], bool]:
    return lambda pid: any(pid in pids for pids in listed().values())


def test_stubs_are_listed_only_when_an_expected_one_has_ended() -> None:
    listings = []
    running = {("a", 1): {1}, ("b", 1): {2}}

    def listed() -> Stubs:
        listings.append(1)
        return running

    watch = StubWatch(listed, _runs(lambda: running))
    watch.expect("a", 1)
    watch.expect("b", 1)
    before = len(listings)
    assert watch.missing() == {}
    assert len(listings) == before
    running = {("a", 1): {1}}
    assert watch.missing() == {("b", 1): 1}


def test_process_that_ended_before_it_is_expected_is_noticed() -> None:
    running = {("a", 1): {1}}
    watch = StubWatch(lambda: running, _runs(lambda: running))
    assert watch.expect("a", 1)
    assert not watch.expect("b", 1)


def test_stub_is_missing_until_the_model_has_been_loaded_again() -> None:
    running = {("a", 1): {1, 2}, ("b", 1): {3}}
    watch = StubWatch(lambda: running, _runs(lambda: running))
    watch.expect("a", 1)
    watch.expect("b", 1)
    assert watch.missing() == {}
    running = {("a", 1): {1}, ("b", 1): {3}}
    assert watch.missing() == {("a", 1): 1}
    assert watch.missing() == {("a", 1): 1}
    running = {("a", 1): {1, 4}, ("b", 1): {3}}
    watch.expect("a", 1)
    assert watch.missing() == {}


def test_stub_replaced_by_a_reload_is_not_missing() -> None:
    running = {("a", 1): {1}}
    watch = StubWatch(lambda: running, _runs(lambda: running))
    watch.expect("a", 1)
    for now in ({1, 2}, {2}):  # while the old instance finishes, and after
        running = {("a", 1): now}
        assert watch.missing() == {}
    running = {("a", 1): set()}
    assert watch.missing() == {("a", 1): 1}


def test_stub_of_a_retired_version_may_end_and_that_of_the_served_one_may_not() -> None:
    running = {("a", 1): {1}}
    watch = StubWatch(lambda: running, _runs(lambda: running))
    watch.expect("a", 1)
    running = {("a", 1): {1}, ("a", 2): {2}}
    watch.expect("a", 2)
    running = {("a", 2): {2}}
    assert watch.missing() == {("a", 1): 1}, "both versions are still needed"
    watch.expect_only("a", 2)
    assert watch.missing() == {}
    running = {("a", 1): {1}}
    assert watch.missing() == {("a", 2): 1}, "the old version's process does not replace it"


def test_model_without_stubs_has_none_missing() -> None:
    watch = StubWatch(dict)
    watch.expect("native", 1)
    assert watch.missing() == {}


# Configuration of a load


def test_load_is_narrowed_to_one_version(repository: Path) -> None:
    publish_times(repository, "a", 1)
    config = model_config(repository / "a", VersionPolicy(3), incarnation=2)
    assert config["version_policy"] == {"specific": {"versions": ["3"]}}
    assert config["parameters"]["incarnation"] == {"string_value": "2"}
    assert config["input"][0] == {"name": "x", "data_type": "TYPE_FP32", "dims": ["1"]}


def test_version_has_its_own_configuration(repository: Path) -> None:
    folder = publish_times(repository, "a", 1)
    (folder / "config.pbtxt").write_text(CONFIG.replace("max_batch_size: 4", "max_batch_size: 7"))
    assert model_config(repository / "a", VersionPolicy(1))["max_batch_size"] == 7
    assert model_config(repository / "a", VersionPolicy(2))["max_batch_size"] == 4


def test_threads_are_no_more_than_cores(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For Triton's native backends, which do not count them."""
    folder = publish_times(repository, "a", 1)
    for cores, threads in ((4, "2"), (1, "1")):
        monkeypatch.setattr(process_limits, "usable_cores", lambda cores=cores: cores)
        text = CONFIG.replace('string_value: "1"', 'string_value: "2"')
        (folder / "config.pbtxt").write_text(text)
        found = model_config(repository / "a", VersionPolicy(1))["parameters"]
        assert found["intra_op_thread_count"] == {"string_value": threads}


def test_later_switch_has_the_longer_policy() -> None:
    """1 → 2 → 1: both versions are ready, and each was loaded beside the other."""
    first, second = VersionPolicy(2, 1, switches=1), VersionPolicy(1, 2, switches=2)
    assert (first.versions, second.versions) == ([2, 1], [1, 2, 2])
    assert first.alone.versions == [2]


def test_capacity_overrides_the_configuration_of_generators_alone(repository: Path) -> None:
    publish_times(repository, "encoder", 1)
    own = CONFIG.replace("onnxruntime", "autoregressive") + (
        'parameters {key: "max_rows" value {string_value: "9"}}'
        'parameters {key: "max_waiting" value {string_value: "8"}}'
    )
    publish(repository, "generator", times(1), own)
    overrides = {"max_rows": "4"}
    found = model_config(repository / "generator", VersionPolicy(1), 1, overrides)["parameters"]
    assert {name: entry["string_value"] for name, entry in found.items()} == {
        "intra_op_thread_count": "1",
        "max_rows": "4",
        "max_waiting": "8",
        "incarnation": "1",
    }
    assert (
        "max_rows"
        not in model_config(repository / "encoder", VersionPolicy(1), 1, overrides)["parameters"]
    )


def test_broken_configuration_is_named(repository: Path) -> None:
    publish(repository, "a", None, "max_batch_size: many")
    with pytest.raises(BundleError, match=r"config.pbtxt is not a model configuration"):
        model_config(repository / "a", VersionPolicy(1))
    with pytest.raises(BundleError, match="cannot read"):
        model_config(repository / "absent", VersionPolicy(1))


# Installation


def test_our_python_is_first_on_the_path_of_the_stubs(files: RuntimeFiles) -> None:
    found = shutil.which("python3", path=find_installation().environment(files)["PATH"])
    assert found == str(Path(sys.executable).parent / "python3")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, "localhost,127.0.0.1,::1"),
        ({"NO_PROXY": "a.example"}, "a.example,localhost,127.0.0.1,::1"),
        ({"no_proxy": "b", "NO_PROXY": "a"}, "b,localhost,127.0.0.1,::1"),
        ({"no_proxy": "*"}, "*"),
    ],
)
def test_triton_reaches_a_collector_on_this_machine_without_a_proxy(
    given: dict[str, str], expected: str, files: RuntimeFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    environment = find_installation().environment(files)
    assert environment["no_proxy"] == environment["NO_PROXY"] == expected


@pytest.mark.parametrize("what", ["program", "folder", "list", "nothing"])
def test_interpreter_of_the_stubs_has_plain_paths_alone(
    what: str, tmp_path: Path, files: RuntimeFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    strange, packages = tmp_path / "é x", tmp_path / "site-packages"
    strange.mkdir()
    packages.mkdir()
    monkeypatch.setattr(site, "getsitepackages", lambda: [str(packages)])
    if what == "program":
        (strange / "environment").symlink_to(sys.prefix)
        monkeypatch.setattr(sys, "executable", str(strange / "environment" / "bin" / "python3"))
    elif what == "folder":
        monkeypatch.setattr(sys, "path", [*sys.path, str(strange)])
    elif what == "list":
        (packages / "other.pth").write_text("/nowhere/é\n", encoding="utf-8")
    path = find_installation().environment(files)["PATH"]
    program = shutil.which("python3", path=path) or "none"
    assert is_plain(Path(program))
    assert Path(program).is_relative_to(files.folder) is (what != "nothing")
    code = "import sys, numpy; print(*sys.path, numpy.__file__, sep='\\n')"
    found = subprocess.check_output([program, "-I", "-c", code], text=True).splitlines()
    assert all(is_plain(Path(text)) for text in found)
    assert Path(found[-1]).samefile(np.__file__)


@pytest.mark.parametrize("saturates", [False, True])
def test_native_backend_goes_before_ours_where_it_multiplies_bytes_exactly(
    saturates: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(installation, "_products_saturate", lambda: saturates)
    native = tmp_path / "native"
    for name in ("python", "onnxruntime"):
        (native / name).mkdir(parents=True)
    assembled = tmp_path / "assembled"
    assembled.mkdir()
    Installation(tmp_path / "tritonserver", native, ()).assemble(assembled)
    wanted = BACKENDS if saturates else native
    assert (assembled / "onnxruntime").resolve() == wanted / "onnxruntime"
    assert {path.name for path in assembled.iterdir()} >= {
        path.parent.name for path in BACKENDS.glob("*/model.py")
    }


def test_program_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="is not an executable tritonserver"):
        find_installation(tmp_path / "tritonserver")


# Healing


def test_bundle_that_is_loaded_while_the_ready_models_are_read_is_not_loaded_again(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = BundleLoader(settings(repository), StubWatch(dict), progress=print)
    loader.serving["twice"] = Serving(cast(Any, SimpleNamespace(version=1, models=("twice",))))
    control = SimpleNamespace(ready=dict)
    loader._models._control = cast(Any, control)
    reloaded: list[str] = []
    monkeypatch.setattr(loader, "_reload", lambda name, *_: reloaded.append(name))

    def end_healing() -> dict[str, set[int]]:
        heal()
        return {}  # as Triton answered before that

    [heal] = loader.healings(lambda _: [], [])
    control.ready = end_healing
    assert loader.healings(lambda _: [], []) == []
    assert reloaded == ["twice"]
