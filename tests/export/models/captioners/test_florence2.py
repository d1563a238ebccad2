"""Florence-2: answers to the prompts of its tasks, and what its files may not say."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from export.pipeline.cli import export
from export.registry import architecture
from inference.bundle.reader import newest_bundle
from inference.engine.runners.ort.runner import OrtRunner
from inference.generation import Hypothesis
from inference.tasks.detection.generated_boxes import phrases_of
from inference.tasks.detection.regions import written_boxes
from inference.tasks.shared.loaded_model import LoadedModel
from serving.load_model import load_model
from tests.export.florence2_folder import (
    BANNED,
    BYTES,
    CONTROL,
    LOCATIONS,
    NEW_TOKENS,
    RULES,
    Labelled,
    processor_of,
    read_boxes,
    tokenizer,
    wanted,
    write,
)
from tests.export.image_folders import ask, log_probs
from tests.inference.tiny_models import WordTokenizer
from tests.pictures import blocks
from triptych.tasks.detect import Box

PROMPTS = ("<OD>", "<CAPTION_TO_PHRASE_GROUNDING> a cat ", "<REGION_TO_OCR><loc_3><loc_9>", "why?")


@pytest.mark.slow
@pytest.mark.full
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
        caption = ask("caption", model, runner, picture, NEW_TOKENS, **rules).text
        assert caption == wanted(processor, original, picture, "<CAPTION>", **rules).strip()
        for prompt in PROMPTS:
            answered = wanted(processor, original, picture, prompt, **rules)
            asked = {"prompts": ["<image>" + prompt], **rules}
            assert ask("generate", model, runner, picture, NEW_TOKENS, **asked).text == answered
            assert "<loc_" in answered
            found.add(answered)
        ids = [0, *processor.tokenizer("a cat", add_special_tokens=False)["input_ids"], 2]
        for prompt in ("<CAPTION>", *PROMPTS):
            shown = Image.open(io.BytesIO(picture))
            inputs = processor(images=shown, text=prompt, return_tensors="pt")
            asked = {"targets": ["a cat"], "logprobs": 0}
            asked |= {} if prompt == "<CAPTION>" else {"texts": prompt}
            scored = ask("score", model, runner, picture, len(ids), **asked)
            scores = log_probs(original, inputs, ids)
            np.testing.assert_allclose([e.logprob for e in scored.logprobs], scores, atol=1e-4)
        found |= _check_boxes(processor, original, model, runner, picture)
    assert len(found) > len(PROMPTS)  # prompts, and pictures, decide


def _check_boxes(
    processor: Any, original: Any, model: LoadedModel, runner: OrtRunner, picture: bytes
) -> set[str]:
    """The labels that `detect` finds in a picture, after their boxes equal those wanted.

    Of places without a phrase `transformers` takes the first one for a label, "loc_7>".
    """
    with Image.open(io.BytesIO(picture)) as opened:
        size = opened.size
    found: set[str] = set()
    asked: tuple[tuple[str, str, dict[str, Any]], ...] = (
        ("<OD>", "", {}),
        ("<CAPTION_TO_PHRASE_GROUNDING>", "a cat. a dog", {"labels": ["a cat", "a dog"]}),
    )
    for task, text, fields in asked:
        answered = wanted(processor, original, picture, task + text)
        boxes = read_boxes(processor, answered, task, size)
        item = ask("detect", model, runner, picture, NEW_TOKENS, **fields)
        assert (item.width, item.height) == size
        boxes, given = (
            [each for each in sorted(side) if each[0]] for side in (boxes, _labelled(item.boxes))
        )
        assert given == boxes
        assert boxes
        found |= {label for label, _ in boxes}
    return found


def _labelled(boxes: list[Box]) -> list[Labelled]:
    """Ours, in order; `transformers` drops characters beyond ASCII."""
    return sorted(
        (box.label.encode("ascii", "ignore").decode(), (box.x_min, box.y_min, box.x_max, box.y_max))
        for box in boxes
    )


PLACES = "<loc_0><loc_512><loc_699><loc_333>"
ANSWERS = (
    f"a cat{PLACES}",
    f"a cat{PLACES}<loc_5><loc_6><loc_7><loc_8><loc_9>it{PLACES}a dog{PLACES}",
    f" two\nlines{PLACES}behind\n{PLACES}\n before{PLACES}",
    f"{PLACES}a cat<loc_1><loc_2><loc_3>a hat{PLACES} {PLACES}",
    f"the image{PLACES}",
    "a<loc_1><loc_2></s><loc_3><loc_4>",
    f"caf\u00e9{PLACES}a < b{PLACES}<poly>c{PLACES}</poly>",
    "no boxes at all",
)


@pytest.mark.parametrize("size", [(1000, 1000), (37, 6123), (640, 479)])
@pytest.mark.parametrize("task", ["<OD>", "<CAPTION_TO_PHRASE_GROUNDING>"])
def test_boxes_are_read_as_transformers_reads_them(task: str, size: tuple[int, int]) -> None:
    tokens = tokenizer(BYTES)
    processor, reader = processor_of(tokens, 13), _Decoder(tokens)
    ignored = BANNED if task != "<OD>" else ()
    places = range(LOCATIONS)
    every = "".join(f"x<loc_{n}><loc_{places[-n]}><loc_{n // 2}><loc_{n}>" for n in places)
    for answer in (*ANSWERS, every):
        ids = tuple(tokens.encode(answer, add_special_tokens=False))
        given = phrases_of(Hypothesis(ids, 0.0, "stop", (0.0,) * len(ids)), reader)
        boxes = written_boxes(given, size, ignored)
        found = [(box.label.encode("ascii", "ignore").decode(), box.corners) for box in boxes]
        plain = answer.replace("</s>", "")
        assert found == read_boxes(processor, plain, task, size)
        assert ("caf\u00e9" in answer) == ("caf\u00e9" in {box.label for box in boxes})


class _Decoder(WordTokenizer):
    """A bundle's tokenizer over the backend of `transformers`' own."""

    def __init__(self, tokens: Any) -> None:
        super().__init__()
        self._tokens = tokens

    def decode(self, ids: Sequence[int]) -> str:
        hidden = self._tokens.convert_tokens_to_ids(list(CONTROL))
        shown = [number for number in ids if number not in hidden]
        return str(self._tokens.decode(shown, skip_special_tokens=False))

    def pieces(self, ids: Sequence[int], *, of_source: bool = False) -> list[str]:
        return [self._tokens.decode([number], skip_special_tokens=False) for number in ids]


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
    text = {"vocab_size": 51328, "d_model": 768, "max_position_embeddings": 1024}
    for side in ("encoder", "decoder"):
        text |= {f"{side}_layers": 6, f"{side}_attention_heads": 12, f"{side}_ffn_dim": 3072}
    config = architecture("florence2").read_config(
        {"vision_config": vision, "text_config": text, "image_token_id": 51289}
    )
    assert config.image.grid((768, 768)) == (24, 24)
    assert (config.image.width, config.positions, config.frames) == (1024, 50, 100)
    assert (config.text.width, config.text.positions, config.image_token) == (768, 1024, 51289)
