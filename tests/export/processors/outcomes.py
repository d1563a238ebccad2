"""What int8 bundles answer, for comparing processors.

`python -m tests.export.processors.outcomes FOLDER` writes the outcomes of each bundle in a folder
beside it. `make test-avx2` runs it by `qemu-user`, as a processor without VNNI.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from export.parity.graph_runs import LazySessions, bundle_path
from export.parity.parity_inputs import (
    Feeds,
    Observation,
    Probe,
    Run,
    observe_alignment,
    observe_decoder,
    observe_stateless,
)
from export.parity.token_parity import BEAMS, mixed_requests
from export.quantization.int8_parity import RecordedCalls, check_products
from inference import saturation
from inference.bundle.manifest import MANIFEST, Bundle, Manifest
from inference.engine.engine import decode
from inference.engine.runner_factory import make_runner
from inference.load_check import sample_values

FILE = "outcomes.npz"
OUTPUT, TOKENS, SCORES, PRODUCTS = "output: ", "tokens: ", "scores: ", "products: "
EXACT, AS_STORED = f"{PRODUCTS}exact", f"{PRODUCTS}as stored"
"""Errors of products (`product_check.py`), as they are computed here and by signed weights."""

Outcomes = Mapping[str, NDArray[np.generic]]
"""Kind and name of a result → its values."""


def compute_outcomes(bundle: Bundle, *, most_values: int = 10**9) -> Outcomes:
    """Outputs of a bundle's graphs for random inputs, and greedy and beam tokens with scores.

    Args:
        most_values: Of each output.
    """
    files = {key: bundle_path(bundle, key) for key in bundle.manifest.graphs}
    run = RecordedCalls(LazySessions(files))
    observed = _observe(run, bundle.manifest)
    found = {OUTPUT + each.place: _values(each, most_values) for each in observed}
    found |= _products(files, run.calls)
    return found | (_searches(bundle) if "step" in files else {})


def _values(observed: Observation, most: int) -> NDArray[np.float32]:
    values = sample_values(observed.value)
    return values[:: -(-values.size // most) or 1]


def _observe(run: Run, manifest: Manifest) -> list[Observation]:
    vocabulary = manifest.vocabulary_size or manifest.source_vocabulary_size or 16
    drawn = manifest.source_vocabulary_size or vocabulary
    probe = Probe(drawn, vocabulary, images=manifest.text_images)
    if "step" not in manifest.graphs:
        return list(observe_stateless(run, manifest, probe))
    return [*observe_decoder(run, manifest, probe), *observe_alignment(run, manifest, probe)]


def _products(files: Mapping[str, Path], calls: Mapping[str, list[Feeds]]) -> Outcomes:
    exact = check_products(files, calls)
    with patch.object(saturation, "products_saturate", lambda: False):
        as_stored = check_products(files, calls)
    return {EXACT: np.array(exact.worst), AS_STORED: np.array(as_stored.worst)}


def _searches(bundle: Bundle) -> Outcomes:
    found: dict[str, NDArray[np.generic]] = {}
    runner = make_runner(bundle)
    for beams in BEAMS:
        answers = decode(runner, mixed_requests(bundle.manifest, beams))
        for request, answer in enumerate(answers):
            place = f"{beams} beams, request {request}"
            found[SCORES + place] = np.array([each.score for each in answer.hypotheses])
            for rank, each in enumerate(answer.hypotheses):
                found[f"{TOKENS}{place}, {rank}"] = np.array(each.token_ids, np.int64)
    runner.close()
    return found


def read_bundle(folder: Path) -> Bundle:
    """A bundle that a test has staged: `FOLDER/NAME/bundle.json`."""
    [manifest] = folder.glob(f"*/{MANIFEST}")
    return Bundle(manifest.parent, Manifest.model_validate_json(manifest.read_text()))


def read_outcomes(path: Path) -> Outcomes:
    """The outcomes in a file."""
    with np.load(path) as stored:
        return dict(stored)


def differences(wanted: Outcomes, found: Outcomes, tolerance: float, tie: float) -> list[str]:
    """Which outcomes differ.

    Args:
        tolerance: Of an output, relative to its largest magnitude.
        tie: Of scores, in nats a token. Tokens may differ where the scores of both do not by more.
    """
    lines = [f"{name} is missing" for name in wanted.keys() ^ found.keys()]
    for name, want in wanted.items():
        got = found.get(name, want)
        if name.startswith(OUTPUT):
            largest = max(float(np.abs(want).max(initial=0.0)), 1e-30)
            difference = float(np.abs(want - got).max(initial=0.0)) / largest
            if not difference <= tolerance:
                lines.append(f"{name} differs by {difference:.1e}")
        elif name.startswith(SCORES) and not np.abs(want - got).max() <= tie:
            lines.append(f"{name}: {got.tolist()} are not {want.tolist()}")
    return lines


def changed_tokens(wanted: Outcomes, found: Outcomes) -> list[str]:
    """Hypotheses with other tokens."""
    names = [name for name in wanted if name.startswith(TOKENS)]
    return [name for name in names if not np.array_equal(wanted[name], found[name])]


if __name__ == "__main__":
    for each in sorted(path for path in Path(sys.argv[1]).iterdir() if path.is_dir()):
        np.savez_compressed(each / FILE, **compute_outcomes(read_bundle(each)))
