"""Gemma 3 with images: blocks that are seen in both directions, in prompts that are cut."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
from transformers import Gemma3ImageProcessorPil, Gemma3Processor, PreTrainedTokenizerFast

from export.checkpoint.checkpoint import Checkpoint
from export.parity.judge import TOLERANCE
from export.registry import architecture
from export.tokenizer.prompt_images import image_tokens
from inference.bundle.manifest import Bundle
from inference.engine.engine import EngineCore, decode
from inference.engine.request import EngineRequest, Event
from inference.engine.runners.ort.runner import OrtRunner
from inference.engine.scheduler import Capacity
from inference.engine.sequence import SequenceState
from inference.errors import CheckpointError
from inference.tasks.generation.image_places import ImagePlaces
from tests.export.conftest import Bundles, Twins
from tests.export.oracle import compare
from tests.pictures import noise

IMAGE, TOKENS, NEW_TOKENS = 61, 4, 9
PROMPTS = (
    (2, 7, *[IMAGE] * 4, 9, 12, *[IMAGE] * 4, 30, 5, 8, 11, 19, 4, 3),
    (2, 8, 11, 4, 17, 6, 3, 21, 22, 23),
    (*[IMAGE] * 4, 2, 5),
)
SMALL = Capacity(
    *(8, 8), prefill_tokens=6, prefill_tokens_beside=6, chunk_tokens=3, prefix_min_tokens=4
)


def _requests(bundle: Bundle, prompts: tuple[tuple[int, ...], ...]) -> list[EngineRequest]:
    """Requests whose images are the first of one set."""
    manifest = bundle.manifest
    rules = manifest.generation.model_copy(
        update={"max_new_tokens": NEW_TOKENS, "eos_token_ids": (), "num_beams": 1}
    )
    pixels = np.random.default_rng(4).integers(0, 256, (2, *manifest.image.shape), dtype=np.uint8)
    counts = [prompt.count(IMAGE) // TOKENS for prompt in prompts]
    return [
        EngineRequest(
            rules,
            prompt_ids=prompt,
            pixels=pixels[:count] if count else None,
            images=manifest.images,
        )
        for prompt, count in zip(prompts, counts, strict=True)
    ]


def _answers(runner: OrtRunner, requests: list[EngineRequest], capacity: Capacity) -> list[Any]:
    return [each.hypotheses[0].token_ids for each in decode(runner, requests, capacity)]


@pytest.mark.slow
@pytest.mark.full
def test_chunks_and_shared_prefixes_change_no_answer(bundles: Bundles) -> None:
    """A chunk ends within no image, and a prefix is shared where it holds all of them."""
    bundle = bundles("gemma3", "odd")
    requests, runner = _requests(bundle, PROMPTS), OrtRunner(bundle, threads=1)
    whole = _answers(runner, requests, Capacity())
    assert len(set(whole)) == len(PROMPTS)
    assert _answers(runner, requests, SMALL) == whole
    for count in (1, 5):
        resumed = [
            replace(each, rules=each.rules.model_copy(update={"generated_ids": tokens[:count]}))
            for each, tokens in zip(requests, whole, strict=True)
        ]
        assert _answers(runner, resumed, SMALL) == [tokens[count:] for tokens in whole]
    engine = EngineCore(runner, replace(SMALL, prefix_block_tokens=4))
    shared = (*PROMPTS[0], 40), (*PROMPTS[0][:11], 40, 41)
    whole_prompt = len(PROMPTS[0])  # of which the last block is shared in part
    for prompt, tokens in (
        (PROMPTS[0], 0),
        (shared[0], whole_prompt),
        (shared[1], 0),
        (PROMPTS[1], 0),
    ):
        (request,), before = _requests(bundle, (prompt,)), engine.metrics.prefix_tokens
        events: list[Event] = []
        engine.add(SequenceState(request, events.append))
        while not engine.is_idle:
            engine.step()
        (found,) = _answers(runner, [request], Capacity())
        assert events[-1].hypotheses[0].token_ids == found
        assert engine.metrics.prefix_tokens - before == tokens, prompt


def test_causal_images_would_differ(twins: Twins) -> None:
    twin = twins("gemma3", "odd")
    graphs = twin.graphs()
    step: Any = graphs.lowerings["step"].module
    step.has_blocks = False
    places = {
        place
        for place, want, got in compare(twin, graphs=graphs)
        if (want - got).abs().max() > TOLERANCE
    }
    assert places == {f"row {row}, {size} tokens at once" for row in range(2) for size in (3, 6)}


def _processor() -> Gemma3Processor:
    special = ["<start_of_image>", "<end_of_image>", "<image>"]
    words = ["<bos>", *(f"w{number}" for number in range(1, 59)), *special]
    ids = {word: place for place, word in enumerate(words)}
    backend = Tokenizer(models.WordLevel(ids, unk_token="w1"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.add_special_tokens([AddedToken(text) for text in special])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="<bos>",
        extra_special_tokens={
            "boi_token": "<start_of_image>",
            "eoi_token": "<end_of_image>",
            "image_token": "<image>",
        },
    )
    recipe = Gemma3ImageProcessorPil(size={"height": 16, "width": 16})
    return Gemma3Processor(recipe, tokenizer, image_seq_length=TOKENS)


def test_text_of_an_image_is_written_as_the_processor_writes_it(
    twins: Twins, tmp_path: Path
) -> None:
    processor, network = _processor(), twins("gemma3", "odd").network
    processor.tokenizer.save_pretrained(tmp_path)
    section = image_tokens(network, Checkpoint(tmp_path, "x", {}))
    places = ImagePlaces.model_validate(section["images"])
    assert places.place == "<start_of_image>"
    text, pictures = "a<start_of_image> b <start_of_image>", [noise(60, 20), noise(20, 20)]
    scanned = {"do_pan_and_scan": True, "pan_and_scan_min_crop_size": 16}
    scanned |= {"pan_and_scan_max_num_crops": 4, "pan_and_scan_min_ratio_to_activate": 1.2}
    for options, grid in ((scanned, (1, 3)), ({}, (0, 0))):
        _, written = processor._process_images([pictures], **options)
        one, two = (each.replace("<image>" * TOKENS, "<image>") for each in written)
        assert places.laid_out(text, [grid, (0, 0)]) == f"a{one} b {two}"
    (tmp_path / "processor_config.json").write_text(json.dumps({"image_seq_length": 5}))
    with pytest.raises(CheckpointError, match="image_seq_length = 5, but an image has 4 tokens"):
        image_tokens(network, Checkpoint(tmp_path, "x", {}))


def test_processor_ignores_pan_and_scan_of_the_recipe() -> None:
    """Which ours follows (`docs/checkpoints.md`)."""
    processor, picture = _processor(), [noise(60, 20)]
    options = {"do_pan_and_scan": True, "pan_and_scan_min_crop_size": 16}
    options |= {"pan_and_scan_max_num_crops": 4, "pan_and_scan_min_ratio_to_activate": 1.2}
    for name, value in options.items():
        setattr(processor.image_processor, name, value)
    text = "w1 <start_of_image>"
    assert len(processor(images=picture, text=text)["pixel_values"]) == 1
    assert len(processor(images=picture, text=text, **options)["pixel_values"]) == 4
    assert len(processor.image_processor([picture])["pixel_values"]) == 4


def test_published_files_leave_sizes_out() -> None:
    """`config.json` of gemma-3-4b-it."""
    text = {"model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240}
    text |= {"num_hidden_layers": 34, "sliding_window": 1024}
    text["rope_scaling"] = {"factor": 8.0, "rope_type": "linear"}
    vision = {"hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27}
    vision |= {"model_type": "siglip_vision_model", "num_attention_heads": 16, "patch_size": 14}
    values = {"text_config": text, "vision_config": {**vision, "image_size": 896}}
    config = architecture("gemma3").read_config({**values, "mm_tokens_per_image": 256})
    assert (config.tokens, config.pool, config.side) == (256, 4, 64)
    assert (config.image_token, config.begin, config.end) == (262144, 255999, 256000)
    windows = [heads.window for heads in config.text.layers]
    assert windows[:6] == [1024] * 5 + [None]
    assert (config.text.vocabulary_size, config.text.has_tied_output) == (262208, True)
