"""A prompt may be prefilled in chunks: several tokens on a past, at batch one (chunked prefill)."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
import torch

from export.parity.decoder_inputs import Admitted, StepLoop
from export.parity.graph_runs import bundle_path, onnx_run
from export.parity.judge import TOLERANCE
from export.parity.parity_inputs import Probe
from tests.export.conftest import Bundles, Twins
from tests.export.oracle import difference

LENGTH = 12


@pytest.mark.parametrize("chunks", [(12,), (5, 7), (1, 4, 4, 3), (11, 1), (1,) * 12])
def test_prompt_in_chunks_gives_the_scores_of_the_whole(
    chunks: tuple[int, ...], twins: Twins, bundles: Bundles
) -> None:
    twin, bundle = twins("gpt2", "odd"), bundles("gpt2", "odd")
    tokens = np.random.default_rng(0).integers(0, 64, (1, LENGTH))
    with torch.no_grad():
        want = twin.reference(torch.from_numpy(tokens)).logits[0]  # (T, V)
    session = onnxruntime.InferenceSession(str(bundle_path(bundle, "step")))
    run = onnx_run({"step": session})
    admitted = Admitted.make(run, bundle.manifest, Probe(64, 64), 1, 1)
    call = StepLoop(run, bundle.manifest, admitted, room=LENGTH + 4)  # arenas are rarely full
    end = 0
    for chunk in chunks:
        start, end = end, end + chunk
        logits = call(tokens[:, start:end], np.array([end], np.int32), chunk)
        assert difference(want[end - 1], torch.from_numpy(logits[0])) < TOLERANCE, end
