"""The served peer: infinity (github.com/michaelfeil/infinity), in an environment of its own.

Its releases pin numpy, transformers and click below what this project uses.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from examples.demo.server import free_port, last_lines, stop

PINNED = (
    "infinity-emb[server,torch,optimum]==0.0.78",
    "torch==2.13.0",
    "transformers==4.57.6",
    "sentence-transformers==3.4.1",
    "optimum==2.1.0",
    "optimum-onnx==0.1.0",
    "onnxruntime==1.31.1",
    "numpy==1.26.4",
    "pillow==13.0.0",
    "aiohttp>=3.12",  # images, which no extra of infinity without colpali brings
)
"""Tried together; torch is the CPU's wheel where the package index has one."""
DTYPES = {"fp32": "float32", "bf16": "bfloat16"}
READY_TIMEOUT_S = 240.0


@contextmanager
def serving(folder: Path, engine: str, precision: str, cache: Path) -> Iterator[str]:
    """`infinity_emb v2` on a free port for as long as the block runs; yields its URL.

    Args:
        folder: A checkpoint; the model is called `m`.
        engine: `torch`, or `optimum` for ONNX Runtime, which runs float32.
        precision: `fp32` or `bf16`, of the torch engine.
        cache: The folder that the environment and ONNX files are made in.

    Raises:
        CalledProcessError: the environment or the ONNX file could not be made.
        SystemExit: the server ended, or was not ready in time; with the last lines of its log.
    """
    cache, folder = cache.resolve(), folder.resolve()
    programs = environment(cache) / "bin"
    source = export_onnx(folder, programs, cache) if engine == "optimum" else folder
    port = free_port()
    command = [
        # Relative: of a local model, its optimum engine finds ONNX files in no other way.
        *(str(programs / "infinity_emb"), "v2", "--model-id", "."),
        *("--served-model-name", "m", "--engine", engine, "--device", "cpu"),
        *("--dtype", DTYPES[precision], "--host", "127.0.0.1", "--port", str(port)),
        *("--pooling-method", "mean"),  # its optimum engine takes the first token's state otherwise
        "--no-model-warmup",  # the benchmark sends uncounted requests first
    ]
    url = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryFile() as log:
        # It keeps optimised ONNX files in the hub's cache by the model's name, which is the same
        # for all models here.
        own = _offline() | {"HF_HOME": str(cache / "infinity-hub" / source.name)}
        server = subprocess.Popen(command, stdout=log, stderr=log, env=own, cwd=source)
        try:
            deadline = time.monotonic() + READY_TIMEOUT_S
            while not _is_ready(url):
                if server.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit(f"{last_lines(log, 40)}\ninfinity did not start")
                time.sleep(0.2)
            yield url
        finally:
            stop(server)


def environment(cache: Path) -> Path:
    """A virtual environment with infinity; installed once, again when `PINNED` changes."""
    folder = cache / "infinity"
    stamp = folder / "installed"
    if not stamp.is_file() or stamp.read_text() != "\n".join(PINNED):
        if not (folder / "bin" / "pip").is_file():
            subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        pip = [str(folder / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, *PINNED], check=True, stdout=sys.stderr)
        stamp.write_text("\n".join(PINNED))
    return folder


def export_onnx(folder: Path, programs: Path, cache: Path) -> Path:
    """The checkpoint with its ONNX file, as `optimum-cli export onnx` makes it."""
    made = cache / "infinity-onnx" / folder.name
    if not (made / "model.onnx").is_file():
        shutil.rmtree(made, ignore_errors=True)
        command = [str(programs / "optimum-cli"), "export", "onnx", "--model", str(folder)]
        command += ["--task", "feature-extraction", str(made)]
        subprocess.run(command, check=True, stdout=sys.stderr, env=_offline())
    return made


def _offline() -> dict[str, str]:
    """The environment of its processes: no look-ups of newer files, no statistics."""
    switches = {"HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1", "INFINITY_ANONYMOUS_USAGE_STATS": "0"}
    return dict(os.environ) | switches


def _is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False
