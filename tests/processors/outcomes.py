"""What int8 bundles answer, for comparing processors: `python -m tests.processors.outcomes FOLDER`.

Each sub-folder of FOLDER holds a bundle as tests stage it. The program writes `outcomes.npz` into
it; `make test-avx2` runs it by `qemu-user` as a processor without VNNI.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from export.parity.decoder_inputs import observe_alignment, observe_decoder
from export.parity.graph_runs import LazySessions, bundle_path
from export.parity.parity_inputs import Probe, observe_stateless
from export.parity.token_parity import BEAMS, mixed_requests
from inference.bundle.manifest import MANIFEST, Bundle, Manifest
from inference.engine.engine_core import decode
from inference.engine.runner_factory import make_runner

FILE = "outcomes.npz"
TOKENS = "tokens, {} beams, request {}, hypothesis {}"
SCORE = "score, {} beams, request {}, hypothesis {}"
Outcomes = dict[str, NDArray[np.generic]]
"""By what was computed: outputs of graphs, tokens and scores of searches."""


def compute_outcomes(bundle: Bundle) -> Outcomes:
    """Outputs of a bundle's graphs for random inputs, and greedy and beam tokens."""
    manifest = bundle.manifest
    vocabulary = manifest.vocabulary_size or manifest.source_vocabulary_size or 16
    probe = Probe(
        manifest.source_vocabulary_size or vocabulary, vocabulary, images=manifest.text_images
    )
    run = LazySessions({key: bundle_path(bundle, key) for key in manifest.graphs})
    if "step" not in manifest.graphs:
        return {each.place: each.value for each in observe_stateless(run, manifest, probe)}
    observed = [*observe_decoder(run, manifest, probe), *observe_alignment(run, manifest, probe)]
    found: Outcomes = {each.place: each.value for each in observed}
    runner = make_runner(bundle)
    for beams in BEAMS:
        answers = decode(runner, mixed_requests(manifest, beams))
        for request, answer in enumerate(answers):
            for rank, hypothesis in enumerate(answer.hypotheses):
                place = beams, request, rank
                found[TOKENS.format(*place)] = np.array(hypothesis.token_ids, np.int64)
                found[SCORE.format(*place)] = np.array(hypothesis.score)
    runner.close()
    return found


def read_bundle(folder: Path) -> Bundle:
    """A bundle that a test has staged: `FOLDER/stage/NAME/bundle.json`."""
    [manifest] = (folder / "stage").glob(f"*/{MANIFEST}")
    return Bundle(manifest.parent, Manifest.model_validate(json.loads(manifest.read_text())))


if __name__ == "__main__":
    for folder in sorted(path for path in Path(sys.argv[1]).iterdir() if path.is_dir()):
        np.savez_compressed(folder / FILE, **compute_outcomes(read_bundle(folder)))
        print(folder.name, flush=True)
