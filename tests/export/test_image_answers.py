"""Models that read images first answer as processor and `generate` of `transformers` do.

Exported by the command's own function; task, tokenizer, image recipe and engine are those that
serve.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from export.pipeline.cli import export
from inference.bundle.reader import newest_bundle
from inference.engine.runners.ort.runner import OrtRunner
from serving.load_model import load_model
from tests.export.image_folders import CONTINUES, KINDS, NEW_TOKENS, PROMPTS, ask, wanted, write
from tests.pictures import blocks

pytestmark = [pytest.mark.slow, pytest.mark.full]


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
            answer = ask("generate", model, runner, picture, NEW_TOKENS, prompts=[text], **asked)
            assert answer.text.strip() == answered.strip()
            asked["prompt"] = prompt or None
            caption = ask("caption", model, runner, picture, NEW_TOKENS, **asked)
            before = prompt if kind in CONTINUES else ""
            assert caption.text == f"{before} {answered}".strip()
            found.add(answered)
    assert len(found) > 1
