"""Prefill whole, in chunks, after a cached prefix or with kept images gives the same tokens."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from inference.bundle.manifest import Bundle
from inference.engine.engine import EngineCore, decode, final_result
from inference.engine.request import EngineRequest, RequestValidator
from inference.engine.runners.ort import runner as admission
from inference.engine.runners.ort.runner import OrtRunner
from inference.engine.runners.ort.sessions import ImageStates
from inference.engine.scheduler import Capacity
from inference.generation import Finished, Generation
from tests.export.conftest import Bundles, Twins
from tests.export.sources import source
from tests.export.twin import EXPORTED
from tests.export.twins import generators
from tests.inference.engine.fake_runner import run_staggered

NEW_TOKENS = 8
WHOLE = Capacity(prefix_bytes=0)
PIECES = Capacity(
    chunk_tokens=5, prefill_tokens_beside=8, prefix_block_tokens=4, prefix_min_tokens=4
)


def rules(bundle: Bundle, beams: int) -> Generation:
    defaults = bundle.manifest.generation
    changed = {"num_beams": beams, "num_return_sequences": beams, "max_new_tokens": NEW_TOKENS}
    return defaults.model_copy(update=changed)


def prompts(longest: int) -> list[tuple[int, ...]]:
    """Some share a prefix, some are short."""
    random = np.random.default_rng(5)
    header = random.integers(1, 60, longest - 6).tolist()
    own = [random.integers(1, 60, n).tolist() for n in (1, 6, 3, 5, 2, 6)]
    return [tuple(o) if i % 3 == 2 else (*header, *o) for i, o in enumerate(own)]


def staggered(
    runner: OrtRunner,
    requests: list[EngineRequest],
    capacity: Capacity,
    *,
    shares_prefixes: bool = True,
) -> list[Finished]:
    """Results when a request arrives every second turn."""
    decoder = EngineCore(runner, capacity)
    outcomes = run_staggered(decoder, requests, range(0, 2 * len(requests), 2))
    shares_prefixes &= runner.capabilities.shares_prefixes and capacity is PIECES
    assert bool(decoder.metrics.prefix_hits) == shares_prefixes
    return list(map(final_result, outcomes))


def assert_alike(found: list[Finished], wanted: list[Finished]) -> None:
    for one, other in zip(found, wanted, strict=True):
        for mine, theirs in zip(one.hypotheses, other.hypotheses, strict=True):
            assert mine.token_ids == theirs.token_ids
            assert mine.score == pytest.approx(theirs.score, abs=1e-4)


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("name", generators(is_transformers=True, has_source=False))
def test_language_model_generates_the_tokens_of_transformers(
    beams: int, name: str, twins: Twins, bundles: Bundles
) -> None:
    twin, bundle = twins(name, EXPORTED), bundles(name, EXPORTED)
    wanted_rules = rules(bundle, beams)
    longest = (bundle.manifest.limits.max_total_tokens or 0) - NEW_TOKENS
    runner = OrtRunner(bundle, threads=1)
    requests = [EngineRequest(wanted_rules, prompt_ids=ids) for ids in prompts(longest)]
    found = staggered(runner, requests, PIECES)
    assert_alike(found, decode(runner, requests, WHOLE))
    for request, one in zip(requests, found, strict=True):
        sequences = twin.reference.generate(
            torch.tensor([request.prompt_ids]),
            do_sample=False,
            num_beams=beams,
            num_return_sequences=beams,
            max_new_tokens=NEW_TOKENS,
        )
        for sequence, hypothesis in zip(sequences.tolist(), one.hypotheses, strict=True):
            length = len(hypothesis.token_ids)
            assert tuple(sequence[len(request.prompt_ids) :][:length]) == hypothesis.token_ids


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("name", generators(has_source=True))
def test_decoder_with_a_source_prefills_its_prompt_in_chunks(
    beams: int, name: str, bundles: Bundles
) -> None:
    bundle = bundles(name, EXPORTED)
    runner = OrtRunner(bundle, threads=1)
    requests = prompted(bundle, beams)
    found = staggered(runner, requests, PIECES, shares_prefixes=False)
    assert_alike(found, decode(runner, requests, WHOLE))


def prompted(bundle: Bundle, beams: int) -> list[EngineRequest]:
    """A source with a prompt each, of several lengths and beginnings."""
    random = np.random.default_rng(6)
    return [
        EngineRequest(
            rules(bundle, beams),
            **{
                "prompt_ids": tuple(random.integers(1, 20, length).tolist()),
                **source(bundle, random, length if bundle.manifest.images else 3 + length % 5),
            },
        )
        for length in (12, 2, 9, 1)
    ]


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
