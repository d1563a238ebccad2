"""Tokens a second of full-size generators, beside others on the same card and the roofline."""

from __future__ import annotations

import importlib.metadata
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gpu.card import Card
from benchmarks.gpu.outcome import Outcome
from benchmarks.speed.checkpoints import checkpoint, ctranslate2_folder
from benchmarks.speed.roofline import weight_bytes
from benchmarks.speed.systems import words
from inference.bundle.manifest import Bundle
from inference.engine.engine_core import decode
from inference.engine.runners.candidates import plain_request
from inference.engine.runners.protocol import Prompt
from inference.engine.scheduler import Capacity
from inference.engine.search.request import EngineRequest
from inference.generation import Generation

PROMPT, NEW = 64, 128
BATCHES = (1, 8, 32)


def ours(card: Card, bundle: Bundle, batch: int, bytes_per_s: float, new: int = NEW) -> Outcome:
    """Our engine; and how a step compares with reading weights and caches once."""
    runner = card.runner(bundle)
    rules = Generation(max_new_tokens=new, min_new_tokens=new, eos_token_ids=(), pad_token_id=0)
    capacity = Capacity(rows=batch, prefix_bytes=0)

    def run(seed: int) -> None:
        random = np.random.default_rng(seed)
        prompts = random.integers(2, runner.vocabulary_size, (batch, PROMPT)).tolist()
        decode(runner, [EngineRequest(rules, prompt_ids=tuple(p)) for p in prompts], capacity)

    taken_s = _best_of_three(run)
    step_s = _step_seconds(runner, batch)
    read = weight_bytes(bundle.path(bundle.manifest.graphs["step"].file))
    read += batch * (PROMPT + new // 2) * runner.footprint.position
    found = {
        "batch": batch,
        "tokens_per_s": batch * new / taken_s,
        "step_ms": 1000 * step_s,
        "share_of_roofline": read / bytes_per_s / step_s,
    }
    return Outcome("speed, triptych", bundle.manifest.name, bundle.manifest.precision, None, found)


def _step_seconds(runner: Any, batch: int, steps: int = 20) -> float:
    """Of a captured step with its candidates, on rows of the prompt's length."""
    group = runner.group(1)
    prompt = Prompt(np.arange(PROMPT) % runner.vocabulary_size)
    group.admit([prompt] * batch, [plain_request(1)] * batch)
    tokens, wanted = np.full(batch, 2), [plain_request(1)] * batch
    for _ in range(4):
        group.step(tokens, wanted)
    started_s = time.perf_counter()
    for _ in range(steps):
        group.step(tokens, wanted)
    taken_s = time.perf_counter() - started_s
    group.release()
    return taken_s / steps


def of_transformers(name: str, batch: int, folder: Path, number: int) -> Outcome:
    """`generate` in float16 with a static cache, which compiles the step."""
    try:
        import torch
        import transformers
    except ImportError as error:
        return _absent("transformers", name, str(error))
    if not torch.cuda.is_available():
        return _absent("transformers", name, f"torch {torch.__version__} finds no CUDA")
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
                cache_implementation="static",
                pad_token_id=0,
            )
        torch.cuda.synchronize()

    return _timed("transformers", name, batch, run)


def of_ctranslate2(name: str, batch: int, folder: Path, number: int) -> Outcome:
    """CTranslate2's generator in float16."""
    try:
        import ctranslate2
    except ImportError as error:
        return _absent("ctranslate2", name, str(error))
    if not ctranslate2.get_cuda_device_count():
        return _absent("ctranslate2", name, f"{ctranslate2.__version__} finds no CUDA")
    generator = ctranslate2.Generator(
        str(ctranslate2_folder(name, "fp32", folder)),
        device="cuda",
        device_index=number,
        compute_type="float16",
    )

    def run(seed: int) -> None:
        random = np.random.default_rng(seed)
        prompts = random.integers(2, 50_000, (batch, PROMPT)).tolist()
        generator.generate_batch(
            [words(tuple(prompt)) for prompt in prompts],
            max_length=NEW,
            min_length=NEW,
            include_prompt_in_result=False,
            max_batch_size=0,
        )

    return _timed("ctranslate2", name, batch, run)


def _timed(engine: str, name: str, batch: int, run: Callable[[int], None]) -> Outcome:
    version = importlib.metadata.version(engine)
    found = {
        "batch": batch,
        "tokens_per_s": batch * NEW / _best_of_three(run),
        "version": version,
    }
    return Outcome(f"speed, {engine}", name, "fp16", None, found)


def _absent(engine: str, name: str, reason: str) -> Outcome:
    return Outcome(f"speed, {engine}", name, "fp16", None, {"not measured": reason})


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
