"""What a place consists of: preparations, which change how a server is started.

A preparation is a function of a `Start`; most are made by the functions of this module. Mounts are
made in a mount namespace of the server's own, resource limits by control groups or `ulimit`, so
that nothing else on the machine sees them.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy
import pytest

from examples.demo.server import free_port
from serving.ports import host_port
from tests.e2e.text_bundles import copy_models

ROOT = Path(__file__).parents[2]
MODELS = ("example-es-en", "example-bert-embed")
"""One of each backend of ours."""
STRANGE = "mein 'projekt' \"é\" $HOME; 日本"
"""The name of a folder that a shell, or an interpreter without a locale, takes otherwise."""
MARK = "PLACE_MARK"
"""The variable by which the processes of one start are found."""
DEAD = "http://127.0.0.1:9"
"""A proxy that refuses connections."""
_GROUPS = Path("/sys/fs/cgroup")


@dataclass
class Start:
    """How the server of one place is started."""

    folder: Path
    """This start's own, with a short path: a socket lies below it."""
    repository: Path
    temporary: Path
    """TMPDIR."""
    current: Path
    """The current folder."""
    environment: dict[str, str]
    program: list[str]
    on_end: ExitStack
    http_port: int = field(default_factory=free_port)
    grpc_port: int = field(default_factory=free_port)
    arguments: list[str] = field(default_factory=list)
    script: list[str] = field(default_factory=list)
    """Lines of a shell that becomes the program."""
    server_script: list[str] = field(default_factory=list)
    """Likewise, for the server alone."""
    wrapper: list[str] = field(default_factory=list)
    """A program that starts this shell."""
    host: str = "127.0.0.1"
    """Where the gateway is reached."""
    others: list[Running] = field(default_factory=list)
    """Servers beside it."""

    def client(self, *arguments: str) -> list[str]:
        """A command of ours in this place."""
        return self._command(self.script, arguments)

    def server(self) -> list[str]:
        """`triptych serve` in this place."""
        ports = ("--http-port", str(self.http_port), "--grpc-port", str(self.grpc_port))
        given = ("serve", "--repository", str(self.repository), *ports, *self.arguments)
        return self._command([*self.script, *self.server_script], given)

    def _command(self, script: Sequence[str], arguments: Sequence[str]) -> list[str]:
        lines = "\n".join(("set -e", *script, 'exec "$@"'))
        return [*self.wrapper, "bash", "-c", lines, "place", *self.program, *arguments]


Preparation = Callable[[Start], object]


@dataclass(frozen=True)
class Place:
    """A machine, or a place on it, and what is expected there.

    Attributes:
        prepare: In order.
        says: A pattern of the line with which `triptych serve` refuses to start; None: it starts
            and answers.
        command_says: A pattern of the line with which `triptych translate` ends in this place;
            None: it prints the answer.
        logs: A pattern of a line that it logs.
        served: The models that answer; others are not served.
        meanwhile: Called while the server is ready, before it is asked.
    """

    name: str
    prepare: Sequence[Preparation] = ()
    says: str | None = None
    command_says: str | None = None
    logs: str | None = None
    served: Sequence[str] = MODELS
    meanwhile: Callable[[Running], object] = lambda running: None


def together(name: str, *places: Place) -> Place:
    """One place that is all of these, which start and answer, as a quick test of them."""
    assert not any(place.says for place in places)
    answers = [place.command_says for place in places if place.command_says]
    return Place(
        name,
        [prepare for place in places for prepare in place.prepare],
        command_says=answers[0] if answers else None,
        meanwhile=lambda running: [place.meanwhile(running) for place in places],
    )


@dataclass(frozen=True)
class Running:
    """A server that has been started."""

    start: Start
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def url(self) -> str:
        return f"http://{host_port(self.start.host, self.start.http_port)}"

    @property
    def grpc_address(self) -> str:
        return host_port(self.start.host, self.start.grpc_port)


def make_start(source: Path, on_end: ExitStack) -> Start:
    """A start in a plain place.

    Args:
        source: A repository with `MODELS`, which is copied.
    """
    folder = Path(on_end.enter_context(tempfile.TemporaryDirectory(prefix="place-")))
    folder.chmod(0o755)
    for name in ("tmp", "current"):
        (folder / name).mkdir()
    own = os.pathsep.join(map(str, (ROOT, ROOT / "clients")))
    return Start(
        folder=folder,
        repository=copy_models(source, folder, MODELS),
        temporary=folder / "tmp",
        current=folder / "current",
        environment={
            **{name: text for name, text in os.environ.items() if "proxy" not in name.lower()},
            **{"PYTHONPATH": own, MARK: uuid.uuid4().hex, "TMPDIR": str(folder / "tmp")},
        },
        program=[str(Path(sys.executable).with_name("triptych"))],
        on_end=on_end,
    )


def variables(**changes: str | None) -> Preparation:
    """Set variables of the environment; None removes one."""

    def prepare(start: Start) -> None:
        start.environment.update({name: text for name, text in changes.items() if text is not None})
        for name, text in changes.items():
            if text is None:
                start.environment.pop(name, None)

    return prepare


def bare_environment(start: Start) -> None:
    """As `env -i` leaves it."""
    kept = ("PYTHONPATH", MARK)
    start.environment = {name: start.environment[name] for name in kept}


def shell(*lines: str) -> Preparation:
    """Run lines of a shell before the program."""
    return lambda start: start.script.extend(lines)


def server_shell(*lines: str) -> Preparation:
    """Run lines of a shell before the server alone."""
    return lambda start: start.server_script.extend(lines)


def arguments(*given: str, host: str = "127.0.0.1") -> Preparation:
    """Add arguments of `triptych serve`."""

    def prepare(start: Start) -> None:
        start.arguments.extend(given)
        start.host = host

    return prepare


def files(*names: str) -> Preparation:
    """Have files in the current folder that end whatever imports them."""

    def prepare(start: Start) -> None:
        for name in names:
            (start.current / name).write_text(f"raise SystemExit('{name} was imported')\n")

    return prepare


def repository_in(name: str) -> Preparation:
    """Move the repository into a folder of this name."""

    def prepare(start: Start) -> None:
        (start.folder / name).mkdir(parents=True, exist_ok=True)
        start.repository = start.repository.rename(start.folder / name / "model repository")

    return prepare


def repository_by_links(start: Start) -> None:
    """Give the repository by a link, and have a link instead of the folder of a model."""
    apart = (start.repository / MODELS[0]).rename(start.folder / "apart")
    (start.repository / MODELS[0]).symlink_to(apart)
    start.repository = start.folder / "link"
    start.repository.symlink_to(start.folder / "model_repository")


def relative_repository(start: Start) -> None:
    """Name the repository from the current folder, which is beside it."""
    start.current = start.repository.parent
    start.repository = Path(start.repository.name)


def temporary_in(name: str) -> Preparation:
    """Have TMPDIR be a folder of this name."""

    def prepare(start: Start) -> None:
        start.temporary = start.folder / name
        start.temporary.mkdir(parents=True, exist_ok=True)
        start.environment["TMPDIR"] = str(start.temporary)

    return prepare


def clone_in(name: str) -> Preparation:
    """Serve from a fresh clone with an environment of its own, both in a folder of this name."""

    def prepare(start: Start) -> None:
        clone = fresh_clone(start.folder / name)
        start.program = [str(clone / ".venv" / "bin" / "triptych")]
        start.current = clone
        del start.environment["PYTHONPATH"]

    return prepare


def fresh_clone(folder: Path) -> Path:
    """A clone of this repository that `make setup` has set up; `pip` is not run.

    The packages of its environment are this one's: links, but for those that Triton and its
    interpreter look for by their real path.
    """
    command = ["git", "clone", "--quiet", "--no-hardlinks", str(ROOT), str(folder)]
    subprocess.run(command, check=True)
    environment = folder / ".venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    packages = environment / _PACKAGES
    for entry in Path(numpy.__file__).parents[1].iterdir():
        if entry.name.startswith(_BY_REAL_PATH):
            shutil.copytree(entry, packages / entry.name, symlinks=True)
        elif "triptych" not in entry.name:
            (packages / entry.name).symlink_to(entry)
    (packages / "_triptych.pth").write_text(f"{folder}\n{folder / 'clients'}\n", "utf-8")
    python = shlex.quote(str(environment / "bin" / "python"))
    script = environment / "bin" / "triptych"
    script.write_text(_SCRIPT.replace("PYTHON", python), "utf-8")
    script.chmod(0o755)
    (environment / "installed").touch()
    return folder


_PACKAGES = Path("lib", f"python{sys.version_info.major}.{sys.version_info.minor}", "site-packages")
_BY_REAL_PATH = ("numpy", "pytriton", "nvidia_pytriton.libs")
_SCRIPT = """#!/bin/sh
'''exec' PYTHON "$0" "$@"
' '''
import sys
from triptych.cli import main
sys.exit(main())
"""
"""What `pip` writes where a path has blanks."""


def mounts(*lines: str) -> Preparation:
    """Run lines of a shell that mount, in a mount namespace of the server's own.

    `$FOLDER` is the folder of the start. A function `cover_tmp` mounts what its arguments say on
    /tmp, where our own files stay to be seen.
    """

    def prepare(start: Start) -> None:
        start.wrapper = unshare()
        kept = [start.folder, ROOT, Path(sys.prefix).resolve()]
        start.script += [
            f"FOLDER={shlex.quote(str(start.folder))}",
            _COVER.format(kept=shlex.join(str(p) for p in kept if p.is_relative_to("/tmp"))),
            *lines,
        ]

    return prepare


def own_tmp(start: Start) -> None:
    """Have an empty folder be /tmp, and TMPDIR not be set."""
    start.temporary = start.folder / "own"
    start.temporary.mkdir()
    mounts('cover_tmp --bind "$FOLDER/own"')(start)
    variables(TMPDIR=None)(start)


_COVER = """cover_tmp() {{
  mkdir -p "$FOLDER/was"
  mount --bind /tmp "$FOLDER/was"
  exec 9<"$FOLDER/was"
  mount "$@" /tmp
  for kept in {kept}; do
    mkdir -p "$kept"
    mount --bind "/proc/self/fd/9/${{kept#/tmp/}}" "$kept"
  done
  exec 9<&-
}}"""


@cache
def unshare() -> list[str]:
    """The command that starts a program in a mount namespace; skips where there is none."""
    for command in (["unshare", "--mount"], ["unshare", "--mount", "--map-root-user"]):
        trial = [*command, "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
        if shutil.which("unshare") and not subprocess.run(trial, capture_output=True).returncode:
            return command
    pytest.skip("mount namespaces are not permitted to this user")


def group(**limits: str) -> Preparation:
    """Run in a control group with limits: `cores` of time, `memory` in bytes."""

    def prepare(start: Start) -> None:
        name = f"place-{start.environment[MARK]}"
        if (_GROUPS / "cgroup.controllers").exists():
            folders = {_GROUPS / name: _version_2(limits)}
        else:
            folders = {
                _GROUPS / controller / name: values for controller, values in _version_1(limits)
            }
        for folder, values in folders.items():
            try:
                folder.mkdir()
                start.on_end.callback(folder.rmdir)
                for file, text in values.items():
                    (folder / file).write_text(text)
            except OSError as error:
                pytest.skip(f"control groups are not permitted to this user: {error.strerror}")
            start.script.append(f"echo $$ > {shlex.quote(str(folder / 'cgroup.procs'))}")

    return prepare


_PERIOD_US = 100_000


def _version_2(limits: dict[str, str]) -> dict[str, str]:
    values = {}
    if "cores" in limits:
        values["cpu.max"] = f"{int(float(limits['cores']) * _PERIOD_US)} {_PERIOD_US}"
    if "memory" in limits:
        values |= {"memory.max": limits["memory"], "memory.swap.max": "0"}
    return values


def _version_1(limits: dict[str, str]) -> list[tuple[str, dict[str, str]]]:
    values = []
    if "cores" in limits:
        quota = str(int(float(limits["cores"]) * _PERIOD_US))
        values.append(("cpu", {"cpu.cfs_period_us": str(_PERIOD_US), "cpu.cfs_quota_us": quota}))
    if "memory" in limits:
        values.append(("memory", {"memory.limit_in_bytes": limits["memory"]}))
    return values


def other_user(start: Start) -> None:
    """Run as a user who owns none of the files."""
    start.wrapper = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    trial = subprocess.run(start.client("--version"), capture_output=True, check=False)
    if trial.returncode:
        pytest.skip("no other user can run this environment")
    for folder in (start.temporary, start.current):
        folder.chmod(0o777)


def damage(*path: str) -> Preparation:
    """Cut a file of the repository, named by its parts, in half."""

    def prepare(start: Start) -> None:
        file = start.repository.joinpath(*path)
        os.truncate(file, file.stat().st_size // 2)

    return prepare
