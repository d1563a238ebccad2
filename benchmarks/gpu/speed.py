"""Tokens a second of full-size generators, beside others on the same card and the roofline."""

from __future__ import annotations

import importlib.metadata
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.gpu.card import Card, Outcome, missing_transformers, not_measured
from benchmarks.speed.checkpoints import checkpoint, ctranslate2_folder
from benchmarks.speed.roofline import weight_bytes
from benchmarks.speed.systems import words
from inference.bundle.manifest import Bundle
from inference.engine.engine import decode
from inference.engine.request import EngineRequest
from inference.engine.runners.candidates import plain_request
from inference.engine.runners.protocol import Prompt
from inference.engine.scheduler import Capacity
from inference.generation import Generation

PROMPT, NEW = 64, 128
BATCHES = (1, 8, 32)


def ours(
    card: Card, bundle: Bundle, batch: int, bytes_per_s: float, new: int = NEW, beams: int = 1
) -> Outcome:
    """Our engine; and how a greedy step compares with reading weights and caches once."""
    runner = card.runner(bundle)
    rules = bundle.manifest.generation or Generation(eos_token_ids=(), pad_token_id=0)
    update: dict[str, Any] = {"max_new_tokens": new, "min_new_tokens": new, "num_beams": beams}
    update |= {"eos_token_ids": (), "forced_eos_token_id": None, "num_return_sequences": 1}
    rules = rules.model_copy(update=update)
    capacity = Capacity(rows=batch * beams, prefix_bytes=0)
    has_source = "admit" in bundle.manifest.graphs

    def run(seed: int) -> None:
        rows = _random_ids(seed, batch, bundle)
        requests = [
            EngineRequest(rules, source_ids=ids)
            if has_source
            else EngineRequest(rules, prompt_ids=tuple(ids.tolist()))
            for ids in rows
        ]
        decode(runner, requests, capacity)

    taken_s = _best_of_three(run)
    found = {"batch": batch, "beams": beams, "tokens_per_s": batch * new / taken_s}
    if beams == 1:
        step_s = _step_seconds(runner, bundle, batch)
        read = weight_bytes(bundle.path(bundle.manifest.graphs["step"].file))
        read += batch * (PROMPT + new // 2) * runner.footprint.position
        found |= {"step_ms": 1000 * step_s, "share_of_roofline": read / bytes_per_s / step_s}
    return Outcome("speed, triptych", bundle.manifest.name, bundle.manifest.precision, None, found)


def _random_ids(seed: int, batch: int, bundle: Bundle) -> NDArray[np.int64]:
    """(batch, `PROMPT`) token ids of prompts or sources."""
    manifest = bundle.manifest
    size = manifest.source_vocabulary_size or manifest.vocabulary_size or 64
    return np.random.default_rng(seed).integers(2, size - 1, (batch, PROMPT))


def _step_seconds(runner: Any, bundle: Bundle, batch: int, steps: int = 20) -> float:
    """Of a captured step with its candidates, on rows of the prompt's length."""
    ids = _random_ids(0, batch, bundle)
    if "admit" in bundle.manifest.graphs:
        prompts = [Prompt(np.array([2]), source_ids=row) for row in ids]
    else:
        prompts = [Prompt(row) for row in ids]
    tokens, wanted = np.full(batch, 2), [plain_request(1)] * batch
    for _ in range(4):  # all layouts of a group are captured in its third steps
        group = runner.group(1)
        group.admit(prompts, wanted)
        started_s = time.perf_counter()
        for _ in range(steps):
            group.step(tokens, wanted)
        taken_s = time.perf_counter() - started_s
        group.release()
    return taken_s / steps


def of_transformers(name: str, batch: int, folder: Path, number: int, beams: int = 1) -> Outcome:
    """`generate` in float16 with a static cache, which compiles the step."""
    reason = missing_transformers()
    if reason is not None:
        return not_measured("speed, transformers", name, reason)
    import torch
    import transformers

    config = transformers.AutoConfig.from_pretrained(
        checkpoint(name, folder), trust_remote_code=False
    )
    kind = getattr(transformers, config.architectures[0])
    model = kind.from_pretrained(checkpoint(name, folder), dtype=torch.float16)
    model = model.to(f"cuda:{number}").eval()

    def run(seed: int) -> None:
        random = np.random.default_rng(seed)
        ids = torch.from_numpy(random.integers(2, config.vocab_size, (batch, PROMPT)))
        with torch.inference_mode():
            model.generate(
                ids.to(model.device),
                do_sample=False,
                max_new_tokens=NEW,
                min_new_tokens=NEW,
                num_beams=beams,
                eos_token_id=None,
                forced_eos_token_id=None,
                cache_implementation="static" if beams == 1 else None,
                pad_token_id=0,
            )
        torch.cuda.synchronize()

    return _timed("transformers", name, batch, beams, run)


def of_ctranslate2(name: str, batch: int, folder: Path, number: int, beams: int = 1) -> Outcome:
    """CTranslate2's generator or translator in float16."""
    try:
        import ctranslate2
    except ImportError as error:
        return not_measured("speed, ctranslate2", name, str(error))
    if not ctranslate2.get_cuda_device_count():
        return not_measured("speed, ctranslate2", name, f"{ctranslate2.__version__} finds no CUDA")
    converted = str(ctranslate2_folder(name, "fp32", folder))
    options = {"device": "cuda", "device_index": number, "compute_type": "float16"}
    common = {"max_batch_size": 0, "beam_size": beams}
    try:
        generator, translator = ctranslate2.Generator(converted, **options), None
    except (RuntimeError, ValueError):  # it has an encoder
        translator = ctranslate2.Translator(converted, **options)

    def run(seed: int) -> None:
        random = np.random.default_rng(seed)
        rows = [words(tuple(row)) for row in random.integers(2, 50_000, (batch, PROMPT)).tolist()]
        if translator is not None:
            lengths = {"max_decoding_length": NEW, "min_decoding_length": NEW}
            translator.translate_batch(rows, **lengths, **common)
        else:
            lengths = {"max_length": NEW, "min_length": NEW}
            generator.generate_batch(rows, include_prompt_in_result=False, **lengths, **common)

    return _timed("ctranslate2", name, batch, beams, run)


def _timed(engine: str, name: str, batch: int, beams: int, run: Callable[[int], None]) -> Outcome:
    version = importlib.metadata.version(engine)
    found = {
        "batch": batch,
        "beams": beams,
        "tokens_per_s": batch * NEW / _best_of_three(run),
        "version": version,
    }
    return Outcome(f"speed, {engine}", name, "fp16", None, found)


def _best_of_three(run: Callable[[int], None]) -> float:
    """Seconds; after two runs that compile and capture."""
    run(0)
    run(1)
    taken = []
    for seed in range(2, 5):
        started_s = time.perf_counter()
        run(seed)
        taken.append(time.perf_counter() - started_s)
    return min(taken)
