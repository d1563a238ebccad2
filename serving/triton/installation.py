"""Finds Triton on this machine, and assembles the backend directory that it is started with.

Either NVIDIA's own installation (`/opt/tritonserver`, with native backends) or the PyPI wheel
`nvidia-pytriton`, which holds the server, the python backend and one stub a Python version, but no
ONNX Runtime backend. Our python-based backends are added for the names that are missing.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import shutil
import site
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from inference.errors import SetupError
from serving.backends import ENVIRONMENT
from serving.local_http import without_loopback_proxies
from serving.triton.runtime_files import RuntimeFiles, is_plain

BACKENDS = Path(__file__).parent.parent / "backends"
STUB = "triton_python_backend_stub"
_SECRETS = frozenset(
    ("KEY", "KEYS", "TOKEN", "TOKENS", "SECRET", "SECRETS", "PASSWORD", "PASSWD", "CREDENTIALS")
)
"""Words in names of environment variables whose values are secrets (`AWS_SECRET_ACCESS_KEY`)."""


@dataclass(frozen=True)
class Installation:
    """A `tritonserver` with its backends and libraries."""

    program: Path
    backends: Path
    """Folder with one sub-folder per backend, `python` among them."""
    libraries: tuple[Path, ...]
    """Folders for LD_LIBRARY_PATH."""
    stub: Path | None = None
    """The python backend's stub for the running Python, if it lies elsewhere (wheel)."""

    def environment(self, files: RuntimeFiles) -> dict[str, str]:
        """Environment for the server: our Python first on PATH, and the library path.

        Stubs run isolated and take site-packages from the first `python3` on PATH; with another
        Python first they load another numpy, and outputs are empty without any error.
        """
        paths = [str(_interpreter(files)), os.environ.get("PATH", os.defpath)]
        libraries = [str(files.plain(folder)) for folder in self.libraries]
        libraries.append(os.environ.get("LD_LIBRARY_PATH", ""))
        return {
            **{name: value for name, value in os.environ.items() if not _is_private(name)},
            **without_loopback_proxies(os.environ),  # a collector of spans may be there
            "ORT_DISABLE_TELEMETRY": "1",
            "PYDANTIC_DISABLE_PLUGINS": "__all__",  # to look for them takes each process 20 ms
            "PATH": os.pathsep.join(paths),
            "LD_LIBRARY_PATH": os.pathsep.join(filter(None, libraries)),
        }

    def assemble(self, folder: Path) -> None:
        """Fill an empty folder with this installation's backends and ours.

        Where products of bytes saturate, ours takes the place of the native `onnxruntime`.

        Whole folders are linked. The wheel's `python` is copied (3 MB) because the stub must lie
        beside the library, and Triton refuses a linked file ("escapes backend directory").
        """
        for backend in sorted(path for path in self.backends.iterdir() if path.is_dir()):
            if backend.name == "onnxruntime" and _products_saturate():
                continue  # it reads int8 weights as they are stored; ours multiplies them exactly
            if backend.name == "python" and self.stub is not None:
                shutil.copytree(backend, folder / "python", ignore=_bytecode)
                shutil.copy2(self.stub, folder / "python" / STUB)
            else:
                (folder / backend.name).symlink_to(backend.resolve())
        for ours in sorted(path.parent for path in BACKENDS.glob("*/model.py")):
            if not (folder / ours.name).exists():
                (folder / ours.name).symlink_to(ours.resolve())


def _products_saturate() -> bool:
    from inference.saturation import products_saturate  # loads ONNX Runtime

    return products_saturate()


def _interpreter(files: RuntimeFiles) -> Path:
    """A folder with a `python3` that imports what this process imports, from plain paths.

    Mostly this environment's own. Without a locale Python ends at a `.pth` file that is not ASCII;
    where there is one, or another path, it is an environment made for the server.
    """
    program = Path(sys.executable)
    # Without -P the first is the current folder, or that of the script.
    folders = [Path(folder).absolute() for folder in sys.path[not sys.flags.safe_path :]]
    lists = [path for folder in site.getsitepackages() for path in Path(folder).glob("*.pth")]
    if all(map(is_plain, (program, *folders))) and all(p.read_bytes().isascii() for p in lists):
        return program.parent
    root = files.folder / "python"
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = root / "lib" / version / "site-packages"
    packages.mkdir(parents=True)
    lines = [f"{files.plain(folder)}\n" for folder in folders if folder.is_dir()]
    (packages / "triptych.pth").write_text("".join(lines), encoding="ascii")
    home = files.plain(Path(sys.base_prefix)) / "bin"
    (root / "pyvenv.cfg").write_text(f"home = {home}\n", encoding="ascii")
    (root / ENVIRONMENT).symlink_to(sys.prefix)
    (root / "bin").mkdir()
    (root / "bin" / "python3").symlink_to(program)
    return root / "bin"


_bytecode = shutil.ignore_patterns("__pycache__")


def _is_private(name: str) -> bool:
    """Whether an environment variable is the gateway's, or a secret by its name.

    A model's code sees the server's environment. OpenTelemetry's headers may contain a secret too,
    but Triton's exporter needs them.
    """
    return name.startswith("TRIPTYCH_") or not _SECRETS.isdisjoint(name.upper().split("_"))


def find_installation(program: Path | None = None) -> Installation:
    """The given `tritonserver`, else the one on PATH, else the one in the wheel.

    Raises:
        SetupError: there is none, or its parts are missing.
    """
    if program is None:
        on_path = shutil.which("tritonserver")
        program = Path(on_path) if on_path else None
    if program is None:
        return _wheel()
    if not os.access(program, os.X_OK):
        raise SetupError(f"{program} is not an executable tritonserver: check $TRITONSERVER")
    program = program.resolve()
    wheel = program.parent.parent / "python_backend_stubs"
    return _wheel() if wheel.is_dir() else _container(program)


def _container(program: Path) -> Installation:
    """NVIDIA's layout: `<root>/bin/tritonserver` beside `<root>/backends`."""
    backends = program.parent.parent / "backends"
    if not (backends / "python" / STUB).is_file():
        raise SetupError(f"{program} has no python backend in {backends}: use another Triton")
    return Installation(program, backends, libraries=(program.parent.parent / "lib",))


def _wheel() -> Installation:
    """The wheel's layout: `pytriton/tritonserver` beside `nvidia_pytriton.libs`."""
    spec = importlib.util.find_spec("pytriton")
    if spec is None or spec.origin is None:
        raise SetupError(
            "no tritonserver found: pip install 'triptych[serve-cpu]', or set $TRITONSERVER"
        )
    package = Path(spec.origin).parent
    root = package / "tritonserver"
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    stub = root / "python_backend_stubs" / version / STUB
    if not stub.is_file():
        known = ", ".join(sorted(path.name for path in stub.parent.parent.iterdir()))
        raise SetupError(
            f"the Triton wheel has no stub for Python {version}, only for {known}: use one of those"
        )
    libraries = (package.parent / "nvidia_pytriton.libs", *_libpython())
    return Installation(root / "bin" / "tritonserver", root / "backends", libraries, stub)


def _libpython() -> tuple[Path, ...]:
    """Folder of the shared libpython that the stub links, empty when the system has it.

    Raises:
        SetupError: there is none (a Python built without `--enable-shared`).
    """
    name = f"libpython{sys.version_info.major}.{sys.version_info.minor}.so.1.0"
    folders = [sysconfig.get_config_var("LIBDIR"), str(Path(sys.base_prefix) / "lib")]
    for folder in filter(None, folders):
        if (Path(folder) / name).is_file():
            return (Path(folder),)
    try:
        ctypes.CDLL(name)
    except OSError:
        raise SetupError(
            f"Triton needs {name}, which this Python was built without: "
            "install the system's libpython package, or use a Python with a shared library"
        ) from None
    return ()
