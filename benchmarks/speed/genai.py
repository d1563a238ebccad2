"""OpenVINO GenAI's pipeline of continuous batching, for prompts and questions about a picture.

It is no dependency of ours: where the library or the model in its format is missing,
`missing` returns why (the README has the commands).
"""

from __future__ import annotations

import importlib.util
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.speed.questions import PICTURES, picture, question_text
from benchmarks.speed.work import Clock, Item, Timing, Work

RUNTIME = "openvino-genai"
_CACHE_GB = 2


def folder_of(model: str, precision: str, cache: Path) -> Path:
    """Where the model is in OpenVINO's format; bf16 is float32 that OpenVINO rounds."""
    return cache / RUNTIME / f"{model}-{'fp32' if precision == 'bf16' else precision}"


def missing(model: str, precision: str, cache: Path) -> str | None:
    """What it lacks to decode a model; None if nothing."""
    if importlib.util.find_spec("openvino_genai") is None:
        return "openvino_genai is not installed"
    folder = folder_of(model, precision, cache)
    return None if (folder / "config.json").is_file() else f"no model in {folder}"


class OpenVinoGenai:
    """Requests are added, questions about pictures each followed by a step; then steps until all
    have ended.

    Precisions are set as ours are (`compiled_decoder`): left to themselves, OpenVINO's properties
    would round float32 to bf16 where the processor has it.
    """

    def __init__(self, name: str, precision: str, cache: Path, threads: int) -> None:
        import openvino_genai

        self._library = openvino_genai
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.cache_size, scheduler.max_num_seqs = _CACHE_GB, 32
        scheduler.enable_prefix_caching = False
        kind = "bf16" if precision == "bf16" else "f32"
        properties: dict[str, Any] = {
            "INFERENCE_NUM_THREADS": threads,
            "INFERENCE_PRECISION_HINT": kind,
        }
        decoder = {"KV_CACHE_PRECISION": "u8" if precision.startswith("int") else kind}
        encoder = {"vision_encoder_properties": properties} if name in PICTURES else {}
        folder = str(folder_of(name, precision, cache))
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(
            folder, scheduler, "CPU", properties | decoder, **encoder
        )
        self._requests = 0

    def run(self, work: Work) -> Timing:
        import openvino

        assert work.beams == 1
        assert work.is_forced
        timing = Timing()
        prompts = [_prompt(openvino.Tensor, item) for item in work.items]
        rules = self._library.GenerationConfig()
        rules.max_new_tokens, rules.ignore_eos = work.new_tokens, True
        rules.apply_chat_template = False
        started_s = time.perf_counter()
        clock = Clock(len(work.items), started_s)
        handles: list[Any] = []

        def step() -> None:
            self._pipeline.step()
            for index, handle in enumerate(handles):
                while handle.can_read():
                    (output,) = handle.read().values()
                    clock.record(index, time.perf_counter(), len(output.generated_ids))
                    timing.answers[index] += output.generated_ids

        for prompt in prompts:
            handle = self._pipeline.add_request(self._requests, *prompt, rules)
            self._requests += 1
            handles.append(handle)
            timing.answers.append([])
            if work.items[0].is_question:  # its picture was encoded, while others may go on
                step()
        while self._pipeline.has_non_finished_requests():
            step()
        timing.seconds = time.perf_counter() - started_s
        timing.tokens = sum(map(len, timing.answers))
        clock.fill(timing)
        return timing


def _prompt(tensor: Any, item: Item) -> tuple[Any, ...]:
    """The ids of a prompt; of a question its text and the picture."""
    if not item.is_question:
        return (tensor(np.array([item.prompt], np.int64)),)
    return question_text(item.prompt), [tensor(picture(item.image or 0)[None])]
