"""Prompts with images over OpenVINO: neighbours, prefixes and kept images change no token."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from export.parity.verify import verify
from export.targets.runtime_choice import timed
from inference.bundle.manifest import Bundle
from inference.engine.engine_core import EngineCore, decode, final_result
from inference.engine.runners.openvino.compiled_decoder import CompiledDecoder
from inference.engine.runners.openvino.runner import PagedRunner
from inference.engine.scheduler import Capacity
from inference.engine.search.request import EngineRequest
from inference.engine.validation import RequestValidator
from inference.errors import BundleError
from inference.generation import Generation
from tests.export.conftest import Bundles, Twins
from tests.export.parity.test_paged_parity import for_openvino, staged_copy
from tests.inference.engine.staggered import run_staggered

RULES = Generation(pad_token_id=0, max_new_tokens=6)
IMAGE = [61] * 4
CHUNKS = Capacity(
    chunk_tokens=3, prefill_tokens_beside=6, prefix_block_tokens=16, prefix_min_tokens=16
)


class Pictured:
    """A tiny LLaVA over OpenVINO, and requests of its prompts."""

    def __init__(self, bundle: Bundle) -> None:
        self.runner = PagedRunner(bundle, threads=2)
        self._validator = RequestValidator(bundle.manifest)
        shape = bundle.manifest.image.shape
        self.images = np.random.default_rng(5).integers(0, 256, (3, *shape), dtype=np.uint8)

    def request(
        self, ids: Sequence[int], images: Sequence[int] = (), beams: int = 1
    ) -> EngineRequest:
        rules = RULES.model_copy(update={"num_beams": beams, "num_return_sequences": beams})
        pixels = self.images[list(images)] if images else None
        made = EngineRequest(rules, prompt_ids=tuple(ids), pixels=pixels)
        return self._validator.validate(made)

    def tokens(self, core: EngineCore, asked: EngineRequest) -> list[tuple[int, ...]]:
        (events,) = run_staggered(core, [asked], [0])
        return [tuple(each.token_ids) for each in final_result(events).hypotheses]


@pytest.fixture(scope="module")
def pictured(bundles: Bundles) -> Iterator[Pictured]:
    made = Pictured(for_openvino(bundles("llava", "odd")))
    yield made
    made.runner.close()


def test_tokens_and_scores_do_not_depend_on_neighbours(pictured: Pictured) -> None:
    asked = [
        pictured.request([3, *IMAGE, 5], [0]),
        pictured.request([8, 9, 10]),
        pictured.request([*IMAGE, 4, *IMAGE, 6], [1, 0], beams=3),
        pictured.request([3, *IMAGE, 5], [2]),
        pictured.request([3, *IMAGE, 5, 7, 9, *IMAGE], [2, 1]),
    ]
    alone = [decode(pictured.runner, [each])[0].hypotheses for each in asked]
    assert len({hypotheses[0].score for hypotheses in alone}) == len(asked)
    core = EngineCore(
        pictured.runner, replace(CHUNKS, prefix_bytes=0, chunk_tokens=16, prefill_tokens_beside=16)
    )
    for turns in ([0] * 5, [0, 1, 2, 3, 4], [4, 3, 0, 2, 1]):
        events = run_staggered(core, asked, turns)
        for found, wanted in zip(map(final_result, events), alone, strict=True):
            assert found.hypotheses == wanted


def test_chunks_that_end_within_an_image_change_no_token(pictured: Pictured) -> None:
    asked = pictured.request([3, *IMAGE, 5, *IMAGE, 4, 9], [0, 1])
    wanted = pictured.tokens(EngineCore(pictured.runner, Capacity(prefix_bytes=0)), asked)
    core = EngineCore(pictured.runner, replace(CHUNKS, prefix_bytes=0))
    events = run_staggered(core, [pictured.request([8, 9, 10]), asked], [0, 2])
    assert [tuple(e.token_ids) for e in final_result(events[1]).hypotheses] == wanted


def test_prompts_share_prefixes_and_images_only_where_they_show_the_same(
    pictured: Pictured, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = pictured.runner
    words = [*range(3, 3 + runner.blocks.block_tokens - 5)]
    first = [9, *IMAGE, *words]  # a whole block
    block = len(first)
    asked = [
        (pictured.request([*first, 6, 7], [0]), 0, 1),
        (pictured.request([*first, 8, *IMAGE], [0, 1]), block, 1),  # the first is in the prefix
        (pictured.request([*first, 6, 7], [1]), 0, 0),
        (pictured.request([*first, 5], [2]), 0, 1),
    ]
    core = EngineCore(runner, replace(CHUNKS, chunk_tokens=64, prefill_tokens_beside=64))
    wanted = [
        pictured.tokens(EngineCore(runner, Capacity(prefix_bytes=0)), each) for each, _, _ in asked
    ]
    assert len({each[0] for each in wanted}) > 1
    runner._decoder.images.clear()
    run, encoded = CompiledDecoder.run, []

    def counted(self: CompiledDecoder, key: str, feeds: object) -> object:
        encoded.append(key)
        return run(self, key, feeds)

    monkeypatch.setattr(CompiledDecoder, "run", counted)
    for (each, cached, images), tokens in zip(asked, wanted, strict=True):
        before = core.metrics.prefix_tokens, len(encoded)
        assert pictured.tokens(core, each) == tokens
        assert core.metrics.prefix_tokens - before[0] == cached
        assert len(encoded) - before[1] == images
    core.fail(RuntimeError("the end of this test"))


@pytest.mark.parametrize("name", ["llava", pytest.param("qwen2_vl", marks=pytest.mark.full)])
def test_gate_passes(name: str, twins: Twins, bundles: Bundles, tmp_path: Path) -> None:
    report = verify(twins(name, "odd").graphs(), staged_copy(bundles(name, "odd"), tmp_path))
    assert report.observations > 10
    assert report.tokens["differences"] == []


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("idefics", "its layers attend to images"),
        ("paligemma", "its prompts are read in both directions"),
        ("gemma3", "its images are read in both directions"),
    ],
)
def test_bundles_that_it_cannot_serve_are_refused_by_name(
    name: str, reason: str, bundles: Bundles
) -> None:
    with pytest.raises(BundleError, match=f"{reason}: export it with --runtime onnxruntime"):
        PagedRunner(for_openvino(bundles(name, "odd")), threads=2)


def test_auto_times_both_runtimes_with_an_image_in_each_prompt(bundles: Bundles) -> None:
    bundle = bundles("llava", "odd")
    found = timed({"onnxruntime": bundle, "openvino": for_openvino(bundle)}, rounds=1)
    assert {cell: set(times) for cell, times in found.items()} == {
        f"greedy, {count} sequences": {"onnxruntime", "openvino"} for count in (1, 8)
    }
