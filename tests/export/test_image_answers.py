"""Models that read images first answer as processor and `generate` of `transformers` do.

Exported by the command's own function; task, tokenizer, image recipe and engine are those that
serve.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from export.pipeline.cli import export
from inference.bundle.reader import newest_bundle
from inference.engine.engine_core import decode
from inference.engine.runners.ort.runner import OrtRunner
from inference.engine.search.request import EngineRequest
from inference.tasks import TASKS
from inference.tasks.shared.limits import TaskLimits
from inference.tasks.shared.loaded_model import LoadedModel
from serving.load_model import load_model
from tests.export.image_folders import CONTINUES, KINDS, NEW_TOKENS, PROMPTS, wanted, write
from tests.pictures import blocks

pytestmark = [pytest.mark.slow, pytest.mark.full]


def _answer(name: str, model: LoadedModel, runner: OrtRunner, picture: bytes, **asked: Any) -> str:
    """What a task returns for one picture."""
    task = TASKS[name]
    request = task.declaration.request.model_validate({"images": ["beside"], **asked})
    plan = task.prepare(request, [picture], model, TaskLimits())
    (call,) = plan.calls
    limited = model.generation.with_overrides(call.options)
    limited = limited.model_copy(update={"max_new_tokens": NEW_TOKENS, "do_sample": False})
    given = dict(call.inputs)
    prompt = tuple(given.pop("prompt_ids", np.zeros(0, np.int64)).tolist())
    outcomes = decode(runner, [EngineRequest(limited, prompt_ids=prompt, **given)])
    (item,) = plan.finish(outcomes).data
    return str(item.text)


@pytest.mark.parametrize("kind", KINDS)
def test_bundle_answers_about_pictures_as_transformers(kind: str, tmp_path: Path) -> None:
    processor, original = write(kind, tmp_path / "picture")
    export(str(tmp_path / "picture"), repository=tmp_path / "repository")
    bundle = newest_bundle(tmp_path / "repository", "picture")
    model, runner, found = load_model(bundle), OrtRunner(bundle, threads=1), set()
    random = np.random.default_rng(6)
    for prompt in PROMPTS:
        picture = blocks(random)
        for num_beams in (1, 3):
            answered = wanted(processor, original, picture, prompt, num_beams)
            asked = {"num_beams": num_beams}
            text = f"<image>{prompt}"
            answer = _answer("generate", model, runner, picture, prompts=[text], **asked)
            assert answer.strip() == answered.strip()
            caption = _answer("caption", model, runner, picture, prompt=prompt or None, **asked)
            before = prompt if kind in CONTINUES else ""
            assert caption == f"{before} {answered}".strip()
            found.add(answered)
    assert len(found) > 1
