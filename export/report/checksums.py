"""Files of a bundle: their SHA-256, and a graph's own inputs and outputs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from export.parity.graph_runs import bundle_path
from inference.bundle.manifest import Bundle, Graph


def checksums(bundle: Bundle) -> dict[str, str]:
    """`<model>/<file>` → SHA-256 of its graphs, their weights and its tokenizer files."""
    return {name: _sha256(path) for name, path in bundle_files(bundle)}


def changed_files(bundle: Bundle, recorded: Mapping[str, str]) -> list[str]:
    """Names of the files that are not what was recorded, added and missing ones included."""
    found = checksums(bundle)
    return sorted(
        name for name in found.keys() | recorded.keys() if found.get(name) != recorded.get(name)
    )


def bundle_files(bundle: Bundle) -> Iterator[tuple[str, Path]]:
    """`<model>/<file>` and path of its graphs, their weights and its tokenizer files."""
    manifest = bundle.manifest
    for key, graph in manifest.graphs.items():
        path = bundle_path(bundle, key)
        for file in (path, path.with_name(f"{graph.file}.data")):
            if file.is_file():
                yield f"{manifest.parts.get(key, manifest.name)}/{file.name}", file
    for name in manifest.tokenizer.files.values() if manifest.tokenizer else ():
        yield f"{manifest.name}/{name}", bundle.path(name)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def interface_problem(session: Any, graph: Graph) -> str | None:
    """How a file's inputs and outputs differ from the manifest's; None where they are equal."""
    for kind, found, declared in (
        ("inputs", session.get_inputs(), graph.inputs),
        ("outputs", session.get_outputs(), graph.outputs),
    ):
        have = [(port.name, _dtype(port.type), list(port.shape)) for port in found]
        want = [(port.name, port.dtype, list(port.shape)) for port in declared]
        if have != want:
            one = next((pair for pair in zip(have, want, strict=False) if pair[0] != pair[1]), None)
            return f"its {kind} are not the manifest's: {one or (len(have), len(want))}"
    return None


def _dtype(name: str) -> str:
    """ONNX Runtime's `tensor(float)` as the manifest names it."""
    plain = name.removeprefix("tensor(").removesuffix(")")
    return {"float": "float32", "double": "float64"}.get(plain, plain)
