"""Generators on the card beside the CPU: scores, tokens, beams, graphs on and off."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.gpu.card import Card, Outcome
from inference.bundle.manifest import Bundle, Manifest, Role
from inference.engine.engine import decode
from inference.engine.request import EngineRequest
from inference.engine.runners.candidates import CandidateRequest
from inference.engine.runners.ort.runner import OrtRunner
from inference.engine.runners.protocol import Prompt
from inference.engine.scheduler import Capacity
from inference.generation import Finished

BOUNDS = {"fp32": (1e-3, 0.98), "fp16": (0.1, 0.9), "bf16": (0.7, 0.4)}
"""Precision → largest difference of a token's log-probability, least share of equal tokens."""
STEPS = 24
_TOKENS = 40


def scores(card: Card, bundle: Bundle, reference: Bundle) -> Outcome:
    """Log-probabilities of the same forced tokens, on both."""
    prompts = [prompt_of(bundle.manifest, seed, tokens=3 + seed) for seed in range(5)]
    forced = np.random.default_rng(9).integers(1, _vocabulary(bundle.manifest), (STEPS, 5))
    given = _forced(card.runner(bundle), prompts, forced)
    wanted = _forced(OrtRunner(reference, 0), prompts, forced)
    worst = float(np.abs(given - wanted).max())
    found = {"worst_log_prob": worst, "scored": int(given.size)}
    return _outcome("scores", bundle, worst <= BOUNDS[bundle.manifest.precision][0], found)


def tokens(card: Card, bundle: Bundle, reference: Bundle, beams: int) -> Outcome:
    """Tokens of whole requests, decoded together, that equal the CPU's."""
    requests = requests_for(bundle.manifest, 12, beams)
    given = decode(card.runner(bundle), requests, Capacity(rows=24))
    wanted = decode(OrtRunner(reference, 0), requests, Capacity(rows=24))
    equal, total = 0, 0
    for one, other in zip(_best(given), _best(wanted), strict=True):
        equal += _common(one, other)
        total += len(other)
    share = equal / max(1, total)
    found = {"equal_tokens": share, "tokens": total}
    passed = share >= BOUNDS[bundle.manifest.precision][1]
    return _outcome("tokens" if beams == 1 else f"{beams} beams", bundle, passed, found)


def graphs_on_and_off(card: Card, bundle: Bundle) -> Outcome:
    """The same tokens with captured graphs and without, while rows come, go and outgrow buckets."""
    requests = [
        *requests_for(bundle.manifest, 24, beams=1, seed=1),
        *requests_for(bundle.manifest, 6, beams=3, seed=2),
    ]
    runner = card.runner(bundle)
    first, again, off = (
        _best(decode(each, requests, Capacity(rows=16)))
        for each in (runner, runner, card.runner(bundle, captures=False))
    )
    found = {"sequences": len(requests), "same": sum(map(_equal, first, off))}
    found["same_again"] = sum(map(_equal, again, off))
    passed = found["same"] == found["same_again"] == len(requests)
    return _outcome("graphs on = off", bundle, passed, found)


def requests_for(manifest: Manifest, count: int, beams: int, seed: int = 0) -> list[EngineRequest]:
    """Requests of lengths that differ, with the bundle's own rules."""
    random = np.random.default_rng(seed)
    made = []
    for number in range(count):
        rules = manifest.generation.model_copy(
            update={
                "num_beams": beams,
                "num_return_sequences": 1,
                "do_sample": False,
                "max_new_tokens": int(random.integers(4, _TOKENS)),
                "min_new_tokens": 0,
            }
        )
        prompt = prompt_of(manifest, 100 * seed + number, tokens=int(random.integers(1, 20)))
        starts = rules.decoder_start_ids
        is_prompted = not starts
        made.append(
            EngineRequest(
                rules,
                prompt.source_ids,
                prompt.pixels,
                prompt_ids=tuple(prompt.token_ids.tolist()) if is_prompted else (),
            )
        )
    return made


def prompt_of(manifest: Manifest, seed: int, tokens: int) -> Prompt:
    """A random prompt with the source that the bundle takes."""
    random = np.random.default_rng(seed)
    token_ids = random.integers(1, _vocabulary(manifest), tokens)
    admit = manifest.graphs.get("admit")
    if admit is None:
        return Prompt(token_ids)
    pixels = admit.input(Role.PIXELS)
    if pixels is not None:
        shape = [size for size in pixels.shape[1:] if isinstance(size, int)]
        return Prompt(token_ids, pixels=random.integers(0, 256, shape).astype(np.uint8))
    vocabulary = manifest.source_vocabulary_size or _vocabulary(manifest)
    return Prompt(token_ids, source_ids=random.integers(1, vocabulary, 2 + tokens % 11))


def _forced(
    runner: OrtRunner, prompts: Sequence[Prompt], forced: NDArray[np.int64]
) -> NDArray[np.float32]:
    """(steps, rows) log-probabilities of tokens that are given."""
    group, found = runner.group(1), list[list[float]]()
    wanted = [[CandidateRequest(1, given=(int(token),)) for token in row] for row in forced]
    candidates = group.admit(prompts, wanted[0])
    for following, row in zip(wanted[1:], forced, strict=False):
        found.append([candidates.given[place][0] for place in range(len(row))])
        candidates = group.step(row, following)
    found.append([candidates.given[place][0] for place in range(len(prompts))])
    group.release()
    return np.array(found, np.float32)


def _vocabulary(manifest: Manifest) -> int:
    assert manifest.vocabulary_size is not None
    return manifest.vocabulary_size


def _best(found: Iterable[Finished]) -> list[tuple[int, ...]]:
    return [each.hypotheses[0].token_ids for each in found]


def _equal(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    return one == other


def _common(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    """Tokens in front of the first difference."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((index for index, (a, b) in pairs if a != b), min(len(one), len(other)))


def _outcome(check: str, bundle: Bundle, is_passed: bool, found: dict[str, Any]) -> Outcome:
    return Outcome(check, bundle.manifest.name, bundle.manifest.precision, is_passed, found)
