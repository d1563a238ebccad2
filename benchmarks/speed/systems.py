"""The systems under test with one interface: load a model once, decode batches of ids.

Each runs in a process of its own, decodes its input as one batch, and reports
tokens as they are generated where it can.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from PIL import Image

from benchmarks.harness.system import System
from benchmarks.speed import genai, llama_cpp
from benchmarks.speed.checkpoints import OURS, SIDES, bundle, checkpoint, ctranslate2_folder
from benchmarks.speed.questions import PICTURES, QWEN, picture
from benchmarks.speed.work import Clock, Item, Timing, Work


class EngineCore(Protocol):
    """One system with one model."""

    def run(self, work: Work) -> Timing:
        """Decodes a batch; fills seconds, tokens and, for one beam, token times."""
        ...


class Triptych:
    """Our engine, as the Triton backend drives it, requests submitted one by one."""

    runtime = "triptych"

    def __init__(self, name: str, precision: str, cache: Path, threads: int) -> None:
        from inference.engine.engine import Engine
        from inference.engine.request import RequestValidator
        from inference.engine.runner_factory import make_runner
        from inference.engine.scheduler import Capacity

        found = bundle(name, precision, cache, OURS[self.runtime])
        self._manifest, self._side = found.manifest, SIDES.get(name, 0)
        # Works share prompts, and models of random weights repeat themselves: neither what is kept
        # of prompts nor drafts may count as speed.
        capacity = Capacity(rows=128, waiting=64, prefix_bytes=0, draft_tokens=0)
        runner = make_runner(found, threads=threads)
        self._engine = Engine(runner, RequestValidator(found.manifest), capacity)

    def run(self, work: Work) -> Timing:
        from inference.engine.engine import final_result
        from inference.generation import TokenChunk

        timing, done = Timing(), threading.Event()
        ended: dict[int, Any] = {}
        requests = [
            self._request(item, work, length)
            for item, length in zip(work.items, work.lengths, strict=True)
        ]
        started_s = time.perf_counter()
        clock = Clock(len(requests), started_s)

        def listen(index: int) -> Any:
            def on_tokens(event: Any) -> None:
                if isinstance(event, TokenChunk):
                    clock.record(index, time.perf_counter(), len(event.token_ids))
                    return
                ended[index] = event
                if len(ended) == len(requests):  # one wake, as a call for a batch has
                    done.set()

            return on_tokens

        for index, request in enumerate(requests):
            self._engine.submit(request, listen(index))
        done.wait()
        timing.seconds = time.perf_counter() - started_s
        results = (final_result([ended[index]]) for index in range(len(requests)))
        answers = [list(result.hypotheses[0].token_ids) for result in results]
        timing.tokens = sum(map(len, answers))
        timing.answers = answers if work.items[0].prompt else []
        clock.fill(timing)
        return timing

    def _request(self, item: Item, work: Work, length: int) -> Any:
        from inference.engine.request import EngineRequest

        update: dict[str, Any] = {"num_beams": work.beams, "num_return_sequences": 1}
        update["max_new_tokens"] = length
        if work.is_forced:  # without an end token nothing ends early
            update |= {"eos_token_ids": (), "forced_eos_token_id": None}
        return EngineRequest(
            self._manifest.generation.model_copy(update=update),
            source_ids=np.array(item.source, np.int64) if item.source else None,
            pixels=_pixels(item, self._side),
            prompt_ids=item.prompt,
            stream=work.beams == 1,
        )


class TriptychOpenVino(Triptych):
    """Our engine with the runner over OpenVINO."""

    runtime = "triptych-openvino"


class CTranslate2:
    """CTranslate2: `translate_batch`, or `generate_batch` for models without a source."""

    def __init__(self, name: str, precision: str, cache: Path, threads: int) -> None:
        import ctranslate2

        folder = str(ctranslate2_folder(name, precision, cache))
        kinds = {"fp32": "float32", "int8": "int8_float32"}
        options = {
            "compute_type": kinds[precision],
            "inter_threads": 1,
            "intra_threads": threads,
        }
        try:
            self._translator = ctranslate2.Translator(folder, **options)
            self._generator = None
        except (RuntimeError, ValueError):
            self._generator = ctranslate2.Generator(folder, **options)

    def run(self, work: Work) -> Timing:
        timing = Timing()
        started_s = time.perf_counter()
        clock = Clock(len(work.items), started_s)

        lengths = work.lengths
        seen = [0] * len(lengths)

        def on_tokens(result: Any) -> bool:
            clock.record(result.batch_id, time.perf_counter())
            seen[result.batch_id] += 1
            return seen[result.batch_id] >= lengths[result.batch_id]

        common = {
            "beam_size": work.beams,
            "max_batch_size": 0,
            "callback": on_tokens if work.beams == 1 else None,
        }
        least = work.new_tokens if work.is_forced else 1
        if self._generator is not None:
            results = self._generator.generate_batch(
                [words(item.prompt) for item in work.items],
                max_length=work.new_tokens,
                min_length=least,
                include_prompt_in_result=False,
                **common,
            )
            timing.tokens = sum(len(result.sequences_ids[0]) for result in results)
        else:
            results = self._translator.translate_batch(
                [words(item.source) for item in work.items],
                max_decoding_length=work.new_tokens,
                min_decoding_length=least,
                **common,
            )
            timing.tokens = sum(len(result.hypotheses[0]) for result in results)
            if not work.is_forced:  # every sentence ends, and the end token is not reported
                timing.tokens += len(results)
        timing.seconds = time.perf_counter() - started_s
        clock.fill(timing)
        return timing


class Transformers:
    """`transformers`' own `generate` in float32."""

    def __init__(self, name: str, precision: str, cache: Path, threads: int) -> None:
        import torch
        import transformers

        assert precision == "fp32"
        torch.set_num_threads(threads)
        folder = checkpoint(name, cache)
        config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=False)
        kind = getattr(transformers, config.architectures[0])
        self._model = kind.from_pretrained(folder, dtype=torch.float32).eval()
        self._name, self._end = name, self._model.config.get_text_config().eos_token_id
        if name in PICTURES:
            self._processor = transformers.AutoImageProcessor.from_pretrained(
                folder, trust_remote_code=False
            )

    def run(self, work: Work) -> Timing:
        import torch
        from transformers import StoppingCriteria, StoppingCriteriaList

        timing = Timing()
        inputs = self._inputs(work)
        started_s = time.perf_counter()
        clock = Clock(len(work.items), started_s)

        lengths = work.lengths
        steps = 0

        class Watch(StoppingCriteria):
            def __call__(self, ids: Any, scores: Any, **_: Any) -> Any:
                nonlocal steps
                steps += 1
                for item in range(len(work.items) if work.beams == 1 else 0):
                    if steps <= lengths[item]:
                        clock.record(item, time.perf_counter())
                if work.beams > 1:
                    return torch.zeros(len(ids), dtype=torch.bool)
                return torch.tensor([steps >= length for length in lengths])

        with torch.inference_mode():
            answers = self._model.generate(
                **inputs,
                num_beams=work.beams,
                do_sample=False,
                max_new_tokens=work.new_tokens,
                min_new_tokens=work.new_tokens if work.is_forced else 1,
                stopping_criteria=StoppingCriteriaList([Watch()]),
                # BLIP's `generate` gives it to that of its decoder.
                **({} if self._name == "blip-base" else {"pad_token_id": self._end or 0}),
            )
        timing.seconds = time.perf_counter() - started_s
        prompt = len(work.items[0].prompt) or 1  # an encoder-decoder's start token
        counts = [self._count(row[prompt:].tolist()) for row in answers]
        timing.tokens = sum(map(min, counts, lengths))
        if work.items[0].prompt:
            timing.answers = answers[:, prompt:].tolist()
        clock.fill(timing)
        return timing

    def _count(self, ids: list[int]) -> int:
        """Generated tokens, the end token included, padding behind it not."""
        return ids.index(self._end) + 1 if self._end in ids else len(ids)

    def _inputs(self, work: Work) -> dict[str, Any]:
        import torch

        if work.items[0].is_question:
            return self._questions(work)
        if work.items[0].image is not None:
            images = np.stack([pixels(item.image or 0, SIDES[self._name]) for item in work.items])
            values = torch.from_numpy(images).permute(0, 3, 1, 2).float() / 127.5 - 1
            return {"pixel_values": values}
        rows = [item.source or item.prompt for item in work.items]
        longest = max(map(len, rows))
        ids = torch.zeros(len(rows), longest, dtype=torch.long)
        mask = torch.zeros_like(ids)
        for index, row in enumerate(rows):
            ids[index, : len(row)] = torch.tensor(row)
            mask[index, : len(row)] = 1
        return {"input_ids": ids, "attention_mask": mask}

    def _questions(self, work: Work) -> dict[str, Any]:
        """Prompts of one length, and their images as the checkpoint's own processor has them."""
        import torch

        ids = torch.tensor([item.prompt for item in work.items])
        images = [[Image.fromarray(picture(item.image or 0))] for item in work.items]
        inputs = {
            "input_ids": ids,
            "attention_mask": torch.ones_like(ids),
            **self._processor(images=images, return_tensors="pt"),
        }
        if self._name == QWEN:  # its positions follow the kinds of tokens
            inputs["mm_token_type_ids"] = (ids == PICTURES[QWEN].token_id).int()
        return inputs


RUNTIMES = {
    "triptych": Triptych,
    "triptych-openvino": TriptychOpenVino,
    "ctranslate2": CTranslate2,
    "transformers": Transformers,
    genai.RUNTIME: genai.OpenVinoGenai,
    llama_cpp.RUNTIME: llama_cpp.LlamaCpp,
}


def load(system: System, model: str, cache: Path) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """What runs the work of one system with one model, for the harness's worker."""
    runtime = RUNTIMES[system.runtime]
    decoder: EngineCore = runtime(model, system.precision, cache, system.threads)
    return lambda work: asdict(decoder.run(Work.from_json(work)))


def _pixels(item: Item, side: int) -> Any:
    """The image of an item: of a question as the list of images that its prompt holds."""
    if item.image is None:
        return None
    return picture(item.image)[None] if item.is_question else pixels(item.image, side)


def words(ids: tuple[int, ...]) -> list[str]:
    """Ids as the converted vocabulary spells them."""
    return [f"w{token}" for token in ids]


def pixels(seed: int, side: int) -> Any:
    """A random image (side, side, 3) uint8."""
    return np.random.default_rng(seed).integers(0, 256, (side, side, 3), dtype=np.uint8)
