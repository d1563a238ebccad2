"""The same repository in two servers: Triton's native onnxruntime backend, and ours.

`NATIVE_BACKENDS` names a folder with `onnxruntime/libtriton_onnxruntime.so` and the ONNX Runtime
that it links, built from Triton's public sources for the release of the installed wheel (24.10),
with the name that the server's library has in the wheel. Its ONNX Runtime may be another version,
so outputs are compared within a tolerance.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from export.pipeline.publish import config
from inference.bundle.manifest import MANIFEST, Bundle
from inference.bundle.reader import newest_bundle
from serving.triton import server
from serving.triton.installation import Installation, find_installation
from serving.triton.server import TritonServer
from serving.triton.stubs import running_stubs
from tests.serving.triton.tiny import settings
from triptych.cli import run

CHECKPOINTS = Path(__file__).parents[2] / "examples" / "checkpoints"
STATELESS = (
    *("example-bert", "example-bert-embed", "example-bert-rerank", "example-bert-sentiment"),
    *("example-bert-tags", "example-clip", "example-vit"),
)
PRECISIONS = ("fp32", "fp16", "int8")
JOINED = "joined"
"""A copy of the sentiment classifier that waits until four requests can be joined."""
_FOUR = "  preferred_batch_size: 4\n  max_queue_delay_microseconds: 9000000\n"


@pytest.fixture(scope="session")
def native_backends() -> Path:
    """The folder of the native backends; without it tests are skipped."""
    given = os.environ.get("NATIVE_BACKENDS")
    if not given:
        pytest.skip("make test-native NATIVE_BACKENDS=… names the native backends")
    folder = Path(given).resolve()
    assert list((folder / "onnxruntime").glob("libtriton_onnxruntime.so")), f"none in {folder}"
    return folder


@pytest.fixture(scope="session")
def repository(native_backends: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every stateless example in every precision that the CPU runs."""
    folder = tmp_path_factory.mktemp("native") / "models"
    for name in STATELESS:
        for precision in PRECISIONS:
            _export(folder, name, f"{name}-{precision}", precision)
    _export(folder, "example-bert-sentiment", JOINED, "fp32")
    for path in folder.glob(f"{JOINED}/**/config.pbtxt"):
        text = path.read_text()
        assert "dynamic_batching {\n" in text
        path.write_text(text.replace("dynamic_batching {\n", f"dynamic_batching {{\n{_FOUR}"))
    return folder


def _export(folder: Path, name: str, bundle: str, precision: str) -> None:
    """Float16 graphs are those for CUDA, published for the CPU, whose provider runs them too."""
    more = ["--device", "cuda"] if precision == "fp16" else []
    where = ["--repository", str(folder), "--name", bundle, "--precision", precision]
    assert run(["export", str(CHECKPOINTS / name), *where, *more]) == 0
    if precision == "fp16":
        move_to_cpu(newest_bundle(folder, bundle))


def move_to_cpu(bundle: Bundle) -> None:
    """Publish a bundle for CUDA again, for the CPU."""
    manifest = bundle.manifest.model_copy(update={"device": "cpu"})
    (bundle.folder / MANIFEST).write_text(manifest.model_dump_json())
    for model in bundle.models:
        folder = bundle.folder.parents[1] / model
        for path in (folder / "config.pbtxt", folder / str(bundle.version) / "config.pbtxt"):
            path.write_text(config(manifest, model))


@contextmanager
def started(repository: Path, backends: Path | None) -> Iterator[TritonServer]:
    """A server; with the native backends of a folder in place of ours."""
    with pytest.MonkeyPatch.context() as patch:
        if backends is not None:
            patch.setattr(
                server,
                "find_installation",
                lambda program: _native(program, backends, repository.parent),
            )
        with TritonServer(settings(repository)) as running:
            yield running


def _native(program: Path | None, backends: Path, scratch: Path) -> Installation:
    """An installation with a further native backend."""
    found = find_installation(program)
    assert not (found.backends / "onnxruntime").exists(), "this Triton has no place for ours"
    merged = Path(tempfile.mkdtemp(prefix="backends-", dir=scratch))
    for name, folder in (("python", found.backends), ("onnxruntime", backends)):
        (merged / name).symlink_to(folder / name)
    return replace(found, backends=merged)


@pytest.fixture(scope="session")
def servers(repository: Path, native_backends: Path) -> Iterator[tuple[TritonServer, TritonServer]]:
    """Native, and ours."""
    with started(repository, native_backends) as native, started(repository, None) as ours:
        assert native.pid is not None
        assert not running_stubs(native.pid), "the native backend has none"
        assert set(native.models) == set(ours.models)
        yield native, ours
