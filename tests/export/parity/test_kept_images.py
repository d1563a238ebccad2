"""Images that prompts share are encoded once, and change no token."""

from __future__ import annotations

import numpy as np
import pytest

from inference.engine.engine_core import EngineCore, decode, final_result
from inference.engine.runners.ort import admission
from inference.engine.runners.ort.image_states import ImageStates
from inference.engine.runners.ort.runner import OrtRunner
from inference.engine.scheduler import Capacity
from inference.engine.search.request import EngineRequest
from inference.engine.validation import RequestValidator
from inference.generation import Generation
from tests.export.conftest import Bundles
from tests.inference.engine.staggered import run_staggered

RULES = Generation(pad_token_id=0, max_new_tokens=6)


def _encoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Filled with the number of images of each call of `admit`."""
    encode, counts = admission._encode, []

    def counted(sessions: object, prompts: list[object]) -> object:
        counts.append(len(prompts))
        return encode(sessions, prompts)

    monkeypatch.setattr(admission, "_encode", counted)
    return counts


@pytest.mark.parametrize(("name", "token", "count"), [("llava", 61, 4), ("idefics", 61, 1)])
def test_questions_about_one_picture_encode_it_once(
    name: str, token: int, count: int, bundles: Bundles, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = bundles(name, "odd")
    validator, random = RequestValidator(bundle.manifest), np.random.default_rng(5)
    one, other = random.integers(0, 256, (2, *bundle.manifest.image.shape), dtype=np.uint8)

    def request(word: int, *images: np.ndarray) -> EngineRequest:
        prompt_ids = (*[token] * (count * len(images)), word)
        pixels = np.stack(images) if images else None
        return validator.validate(EngineRequest(RULES, prompt_ids=prompt_ids, pixels=pixels))

    requests = [
        *(request(word, one) for word in range(3, 7)),
        request(8, other, one),
        request(8, one, other),
        request(8),
    ]

    def tokens(runner: OrtRunner, *asked: EngineRequest) -> list[tuple[int, ...]]:
        return [tuple(found.hypotheses[0].token_ids) for found in decode(runner, asked)]

    wanted = []
    for each in requests:
        runner = OrtRunner(bundle, threads=1)
        wanted += tokens(runner, each)
        runner.close()
    assert len(set(wanted)) > 2  # images and words decide
    counts = _encoded(monkeypatch)
    runner = OrtRunner(bundle, threads=1)
    assert [tokens(runner, each)[0] for each in requests] == wanted
    assert sum(counts) == 2
    assert tokens(runner, *requests) == wanted  # in one batch
    assert sum(counts) == 2
    runner.trim()
    assert tokens(runner, requests[0]) == wanted[:1]
    assert sum(counts) == 2  # a conversation may pause
    runner.close()


def test_prompts_that_begin_with_the_same_images_share_their_prefix(bundles: Bundles) -> None:
    """And others do not, though their tokens are the same."""
    bundle = bundles("llava", "odd")
    validator, random = RequestValidator(bundle.manifest), np.random.default_rng(6)
    one, other = random.integers(0, 256, (2, *bundle.manifest.image.shape), dtype=np.uint8)
    image = [61] * 4

    def request(prompt: list[int], *images: np.ndarray) -> EngineRequest:
        pixels = np.stack(images) if images else None
        return validator.validate(EngineRequest(RULES, prompt_ids=tuple(prompt), pixels=pixels))

    first = request([3, *image, 5], one)
    asked = [
        (request([3, *image, 5, 6, 7], one), 6),
        (request([3, *image, 5, 6, 7], other), 0),
        (request([3, *image, 5, 6, *image, 8], one, other), 7),
        (request([3, *image, 5, 6, *image, 8, 9], one, one), 7),  # the second image is another
        (request([3, *image, 5, 6, *image, 8, 9], one, other), 12),
    ]
    runner = OrtRunner(bundle, threads=1)
    capacity = Capacity(prefix_block_tokens=2, prefix_min_tokens=2)

    def outcome(core: EngineCore, each: EngineRequest) -> tuple[int, ...]:
        (events,) = run_staggered(core, [each], [0])
        return tuple(final_result(events).hypotheses[0].token_ids)

    core = EngineCore(runner, capacity)
    outcome(core, first)
    for each, cached in asked:
        before = core.metrics.prefix_tokens
        found = outcome(core, each)
        assert core.metrics.prefix_tokens - before == cached
        assert found == outcome(EngineCore(runner, Capacity(prefix_bytes=0)), each)
    runner.close()


class _Tensor:
    """Of some bytes."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes


def test_the_least_recently_used_image_is_dropped() -> None:
    states = ImageStates(100)
    for key in (b"a", b"b"):
        states.put(key, [_Tensor(20), _Tensor(20)])
    assert states.get(b"a")
    states.put(b"c", [_Tensor(50)])
    assert states.get(b"b") is None
    assert (states.get(b"a") is None, states.get(b"c") is None, states.nbytes) == (False, False, 90)
    states.put(b"d", [_Tensor(101)])
    assert states.get(b"d") is None
    assert states.nbytes == 90


def test_key_of_an_image_is_its_content() -> None:
    image = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)
    assert ImageStates.key(image) == ImageStates.key(image.copy())
    assert ImageStates.key(image) != ImageStates.key(image[::-1])
