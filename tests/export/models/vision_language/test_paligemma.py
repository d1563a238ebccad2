"""PaliGemma: prompts that are read in both directions, whole and before all that was generated."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from export.parity.judge import TOLERANCE
from export.registry import architecture
from inference.bundle.manifest import Bundle
from inference.engine.engine_core import decode
from inference.engine.runners.ort.runner import OrtRunner
from inference.engine.scheduler import Capacity
from inference.engine.search.request import EngineRequest
from tests.export.conftest import Bundles, Twins
from tests.export.models.captions import export_verified
from tests.export.oracle import compare

IMAGE, NEW_TOKENS, CHUNK = 61, 9, 4
PROMPTS = ((*[IMAGE] * 4, 2, 7, 9, 12, 30, 5), (*[IMAGE] * 4, 2, 5), (2, 8, 11, 4, 17, 6, 3))


def _check_resumed(bundle: Bundle) -> None:
    """Asserts that a sequence goes on behind its tokens as if it had never stopped.

    Its prompt is longer than a chunk, and nothing of it may be read apart.
    """
    manifest, random = bundle.manifest, np.random.default_rng(4)
    rules = manifest.generation.model_copy(
        update={"max_new_tokens": NEW_TOKENS, "eos_token_ids": (), "num_beams": 1}
    )
    requests = []
    for prompt in PROMPTS:
        shape = (prompt.count(IMAGE) // 4, *manifest.image.shape)
        pixels = random.integers(0, 256, shape, dtype=np.uint8) if shape[0] else None
        requests.append(EngineRequest(rules, prompt_ids=prompt, pixels=pixels))
    runner = OrtRunner(bundle, threads=1)
    whole = [found.hypotheses[0].token_ids for found in decode(runner, requests)]
    assert len(set(whole)) == len(PROMPTS)
    small = Capacity(chunk_tokens=CHUNK, prefill_tokens_beside=CHUNK, prefill_tokens=CHUNK)
    for count in (0, 1, 5):
        resumed = [
            replace(each, rules=rules.model_copy(update={"generated_ids": tokens[:count]}))
            for each, tokens in zip(requests, whole, strict=True)
        ]
        found = decode(runner, resumed, small)
        behind = [each.hypotheses[0].token_ids for each in found]
        assert behind == [tokens[count:] for tokens in whole]


def test_sequences_go_on_behind_a_whole_prompt(bundles: Bundles) -> None:
    _check_resumed(bundles("paligemma", "odd"))


@pytest.mark.slow
@pytest.mark.full
def test_graphs_over_gemma2_pass_the_gate(twins: Twins, tmp_path: Path) -> None:
    """With soft caps and a window, and heads that the operator of the cache rotates itself."""
    _check_resumed(export_verified(twins("paligemma", "gemma2"), tmp_path))


def test_causal_prompts_would_differ(twins: Twins) -> None:
    twin = twins("paligemma", "odd")
    graphs = twin.graphs()
    for module in graphs.lowerings["step"].module.modules():
        if hasattr(module, "heads") and hasattr(module, "pack"):
            module.heads = replace(module.heads, is_prefix_lm=False)
    places = {
        place
        for place, want, got in compare(twin, graphs=graphs)
        if (want - got).abs().max() > TOLERANCE
    }
    assert places == {f"row {row}, {size} tokens at once" for row in range(3) for size in (3, 6)}


def test_published_files_leave_sizes_out() -> None:
    """`config.json` of paligemma-3b-pt-224."""
    section = {"model_type": "gemma", "vocab_size": 257216, "num_hidden_layers": 18}
    vision = {"hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27}
    vision |= {"model_type": "siglip_vision_model", "num_attention_heads": 16, "patch_size": 14}
    values = {"text_config": section, "vision_config": vision, "image_token_index": 257152}
    config = architecture("paligemma").read_config(
        {**values, "projection_dim": 2048, "hidden_size": 2048}
    )
    assert (config.text.width, config.text.layers[0].width, config.text.layers[0].groups) == (
        2048,
        256,
        1,
    )
    assert all(heads.is_prefix_lm for heads in config.text.layers)
