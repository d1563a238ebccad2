"""llama.cpp and OpenVINO GenAI as systems under test, for checkpoints of Qwen2's shape.

Both decode one batch of prompts greedily, without ends. They are installed by hand (README).
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.speed.checkpoints import checkpoint
from benchmarks.speed.gguf_files import gguf_file
from benchmarks.speed.work import Clock, Timing, Work

PREFILL = 512
"""Tokens of a call while prompts are read: llama.cpp's default."""
POSITIONS, SEQUENCES = 128, 32
"""Of a sequence, and sequences, for which a cache is reserved."""


class LlamaCpp:
    """llama.cpp through its C interface: all sequences in one batch, a call a step."""

    def __init__(self, name: str, precision: str, cache: Path, threads: int) -> None:
        import llama_cpp

        self._lib: Any = llama_cpp
        llama_cpp.llama_backend_init()
        file = gguf_file(checkpoint(name, cache), precision)
        options = llama_cpp.llama_model_default_params()
        self._model = llama_cpp.llama_model_load_from_file(str(file).encode(), options)
        context = llama_cpp.llama_context_default_params()
        context.n_ctx, context.n_seq_max = POSITIONS * SEQUENCES, SEQUENCES
        context.n_batch = context.n_ubatch = PREFILL
        context.n_threads = context.n_threads_batch = threads
        self._context = llama_cpp.llama_init_from_model(self._model, context)
        self._batch = llama_cpp.llama_batch_init(PREFILL, 0, 1)
        self._sampler = llama_cpp.llama_sampler_init_greedy()

    def run(self, work: Work) -> Timing:
        """See `EngineCore.run`."""
        lib, timing = self._lib, Timing()
        started_s = time.perf_counter()
        clock = Clock(len(work.items), started_s)
        lib.llama_memory_clear(lib.llama_get_memory(self._context), True)
        last = {}
        entries = [
            (token, place, row, place == len(item.prompt) - 1)
            for row, item in enumerate(work.items)
            for place, token in enumerate(item.prompt)
        ]
        for start in range(0, len(entries), PREFILL):
            last |= self._decode(entries[start : start + PREFILL])
        for step in range(work.new_tokens):
            now_s = time.perf_counter()
            for row in range(len(work.items)):
                clock.record(row, now_s)
            if step + 1 < work.new_tokens:
                rows = enumerate(work.items)
                last = self._decode(
                    [(last[row], len(item.prompt) + step, row, True) for row, item in rows]
                )
        timing.seconds = time.perf_counter() - started_s
        timing.tokens = work.new_tokens * len(work.items)
        clock.fill(timing)
        return timing

    def _decode(self, entries: list[tuple[int, int, int, bool]]) -> dict[int, int]:
        """One call: (token, position, sequence, is scored) → the best next token by sequence."""
        batch = self._batch
        batch.n_tokens = len(entries)
        for index, (token, place, row, is_scored) in enumerate(entries):
            batch.token[index], batch.pos[index] = token, place
            batch.n_seq_id[index], batch.seq_id[index][0] = 1, row
            batch.logits[index] = is_scored
        if self._lib.llama_decode(self._context, batch):
            raise RuntimeError("llama.cpp could not decode a batch")
        return {
            row: self._lib.llama_sampler_sample(self._sampler, self._context, index)
            for index, (_, _, row, is_scored) in enumerate(entries)
            if is_scored
        }


class OpenVinoGenAi:
    """OpenVINO GenAI's continuous batching, over the file that llama.cpp reads."""

    def __init__(self, name: str, precision: str, cache: Path, threads: int) -> None:
        import openvino_genai

        self._genai: Any = openvino_genai
        scheduling = openvino_genai.SchedulerConfig()
        scheduling.cache_size = 1  # GiB
        scheduling.enable_prefix_caching = False
        file = gguf_file(checkpoint(name, cache), precision)
        self._pipe = openvino_genai.LLMPipeline(
            str(file), "CPU", scheduler_config=scheduling, INFERENCE_NUM_THREADS=threads
        )

    def run(self, work: Work) -> Timing:
        """See `EngineCore.run`; the first tokens' times are not seen."""
        import openvino

        timing = Timing()
        config = self._genai.GenerationConfig()
        config.max_new_tokens, config.ignore_eos, config.do_sample = work.new_tokens, True, False
        config.apply_chat_template = False
        ids = np.array([item.prompt for item in work.items], np.int64)
        inputs = self._genai.TokenizedInputs(
            openvino.Tensor(ids), openvino.Tensor(np.ones_like(ids))
        )
        started_s = time.perf_counter()
        found = self._pipe.generate(inputs, config)
        timing.seconds = time.perf_counter() - started_s
        timing.tokens = sum(map(len, found.tokens))
        return timing
