"""Florence-2: answers to the prompts of its tasks, and what its files may not say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from export.pipeline.cli import export
from export.registry import architecture
from inference.bundle.reader import newest_bundle
from inference.engine.engine_core import decode
from inference.engine.runners.ort.runner import OrtRunner
from inference.engine.search.request import EngineRequest
from inference.errors import CheckpointError
from inference.tasks import TASKS
from inference.tasks.shared.limits import TaskLimits
from inference.tasks.shared.loaded_model import LoadedModel
from serving.load_model import load_model
from tests.export.florence2_folder import NEW_TOKENS, RULES, wanted, write
from tests.pictures import blocks

PROMPTS = ("<OD>", "<CAPTION_TO_PHRASE_GROUNDING> a cat ", "<REGION_TO_OCR><loc_3><loc_9>", "why?")


@pytest.mark.slow
def test_bundle_answers_as_transformers(tmp_path: Path) -> None:
    """With the checkpoint's own rules and greedily, captions and answers to each kind of prompt."""
    processor, original = write(tmp_path / "picture")
    export(str(tmp_path / "picture"), repository=tmp_path / "repository")
    bundle = newest_bundle(tmp_path / "repository", "picture")
    model, runner, found = load_model(bundle), OrtRunner(bundle, threads=1), set()
    assert {name: getattr(model.generation, name) for name in RULES} == RULES
    random = np.random.default_rng(6)
    for rules in ({}, {"num_beams": 1}):
        picture = blocks(random)
        caption = _answer("caption", model, runner, picture, **rules)
        assert caption == wanted(processor, original, picture, "<CAPTION>", **rules).strip()
        for prompt in PROMPTS:
            answered = wanted(processor, original, picture, prompt, **rules)
            asked = {"prompts": ["<image>" + prompt], **rules}
            assert _answer("generate", model, runner, picture, **asked) == answered
            assert "<loc_" in answered
            found.add(answered)
    assert len(found) > len(PROMPTS)  # prompts, and pictures, decide


def _answer(name: str, model: LoadedModel, runner: OrtRunner, picture: bytes, **asked: Any) -> str:
    """What a task returns for one picture."""
    task = TASKS[name]
    request = task.declaration.request.model_validate({"images": ["beside"], **asked})
    plan = task.prepare(request, [picture], model, TaskLimits())
    (call,) = plan.calls
    limited = model.generation.with_overrides(call.options)
    limited = limited.model_copy(update={"max_new_tokens": NEW_TOKENS})
    outcomes = decode(runner, [EngineRequest(limited, **call.inputs)])
    (item,) = plan.finish(outcomes).data
    return str(item.text)


def test_published_sizes_are_read() -> None:
    """`config.json` of Florence-2-base: 768 pixels a side are 24 x 24 patches and their mean."""
    vision = {
        "depths": [1, 1, 9, 1],
        "embed_dim": [128, 256, 512, 1024],
        "num_heads": [4, 8, 16, 32],
        "num_groups": [4, 8, 16, 32],
        "patch_size": [7, 3, 3, 3],
        "patch_stride": [4, 2, 2, 2],
        "patch_padding": [3, 1, 1, 1],
        "patch_prenorm": [False, True, True, True],
        "projection_dim": 768,
    }
    text = {"vocab_size": 51328, "d_model": 768, "max_position_embeddings": 4096}
    for side in ("encoder", "decoder"):
        text |= {f"{side}_layers": 6, f"{side}_attention_heads": 12, f"{side}_ffn_dim": 3072}
    config = architecture("florence2").read_config(
        {"vision_config": vision, "text_config": text, "image_token_id": 51289}
    )
    assert config.image.grid((768, 768)) == (24, 24)
    assert (config.image.width, config.positions, config.frames) == (1024, 50, 100)
    assert (config.text.width, config.text.positions, config.image_token) == (768, 4096, 51289)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"image_token_id": 64}, "image_token_id = 64 is outside the vocabulary of 64"),
        ({"text_config": {"model_type": "t5"}}, "'t5'"),
        ({"vision_config": {"dim_embed": [128]}}, "florence-community"),
        ({"vision_config": {"projection_dim": 8}}, "projection_dim = 8 is not supported"),
        ({"vision_config": {"num_heads": [5, 2]}}, "5 heads do not share out width 12"),
        ({"vision_config": {"num_groups": [2, 3]}}, "3 heads do not share out width 20"),
        ({"vision_config": {"depths": [1]}}, "one value a stage"),
        ({"vision_config": {"patch_padding": [-1, 0]}}, "patch_padding must be a list"),
    ],
)
def test_what_the_network_lacks_is_refused_by_name(change: dict[str, Any], message: str) -> None:
    declared = architecture("florence2")
    plain = declared.twin.configs["plain"]
    changed = {
        field: {**plain[field], **value} if isinstance(value, dict) else value
        for field, value in change.items()
    }
    with pytest.raises(CheckpointError, match=message):
        declared.read_config({**plain, **changed})
