"""One decode step with a KV cache and without, by length: the graph that the engine runs, timed.

Without a cache every step reads the whole sequence again, as a prefill does.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from matplotlib.figure import Figure as Canvas
from numpy.typing import NDArray

from benchmarks.figures import style
from benchmarks.figures.figure import Facts, Figure
from export.graphs.to_onnx import to_onnx
from export.models.decoders.gpt import GPT2
from inference.engine.runners.ort.sessions import session_options

SHAPE = {"n_embd": 768, "n_head": 12, "n_layer": 2, "n_positions": 1024, "vocab_size": 1000}
"""Layers of GPT-2's width, random weights."""
LENGTHS = (16, 32, 64, 128, 256, 512, 1024)
REPEATS = 9
THREADS = 1


@dataclass(frozen=True)
class Measurements:
    """Least seconds of several runs for one more token, and how far both ways' logits differ.

    Attributes:
        with_cache: (lengths,).
        without: (lengths,).
        difference: Of logits, relative to their largest, over all lengths.
    """

    with_cache: NDArray[Any]
    without: NDArray[Any]
    difference: float


def measure(lengths: tuple[int, ...] = LENGTHS) -> Measurements:
    """Exports a random network, then times both ways in turn."""
    with tempfile.TemporaryDirectory() as folder:
        step = Step(Path(folder))
        rows = [_time(step, length) for length in lengths]
    cached, whole, differences = zip(*rows, strict=True)
    return Measurements(np.array(cached), np.array(whole), max(differences))


class Step:
    """The `step` graph with caches bound in place, as the engine binds them."""

    def __init__(self, folder: Path) -> None:
        torch.manual_seed(0)
        network = GPT2.build(GPT2.read_config(SHAPE)).eval()
        self._graphs = GPT2.graphs(network, None)
        path = folder / "step.onnx"
        to_onnx(self._graphs.lowerings["step"], path)
        self._session = onnxruntime.InferenceSession(
            str(path), session_options(THREADS), providers=["CPUExecutionProvider"]
        )

    def caches(self, positions: int) -> list[onnxruntime.OrtValue]:
        """An empty cache for each state, (1, G, P, K)."""
        sizes = {"R": 1, "P": positions}
        shapes = [[sizes.get(d, d) for d in state.shape] for state in self._graphs.states]
        return [
            onnxruntime.OrtValue.ortvalue_from_numpy(np.zeros(shape, np.float32))
            for shape in shapes
        ]

    def run(
        self, tokens: NDArray[np.int64], length: int, caches: list[onnxruntime.OrtValue]
    ) -> NDArray[Any]:
        """Logits behind the last of the new tokens (T,), of a row that then has `length`."""
        binding = self._session.io_binding()
        binding.bind_cpu_input("tokens", tokens[None])
        binding.bind_cpu_input("lengths", np.array([length], np.int32))
        binding.bind_cpu_input("total", np.array(length, np.int32))
        binding.bind_cpu_input("last", np.array([len(tokens) - 1], np.int64))
        for state, cache in zip(self._graphs.states, caches, strict=True):
            binding.bind_ortvalue_input(state.step_input, cache)
            binding.bind_ortvalue_output(state.step_output, cache)
        empty = np.zeros((1, SHAPE["vocab_size"]), np.float32)
        logits = onnxruntime.OrtValue.ortvalue_from_numpy(empty)
        binding.bind_ortvalue_output("logits", logits)
        self._session.run_with_iobinding(binding)
        found: NDArray[Any] = logits.numpy()
        return found


def _time(step: Step, length: int) -> tuple[float, float, float]:
    """Seconds with a cache and without, and the difference of their logits."""
    tokens = np.random.default_rng(length).integers(0, SHAPE["vocab_size"], length)
    caches = step.caches(length)
    cached, whole = [], []
    for _ in range(REPEATS):
        started = time.perf_counter()
        every = step.run(tokens, length, caches)
        between = time.perf_counter()
        last = step.run(tokens[-1:], length, caches)  # writes its position once more
        cached.append(time.perf_counter() - between)
        whole.append(between - started)
    difference = float(np.abs(every - last).max() / np.abs(every).max())
    return min(cached), min(whole), difference


def draw(data: Measurements) -> Canvas:
    """Milliseconds by length, both axes logarithmic."""
    figure, ((axis,),) = style.canvas(4.6, 2.9)
    axis.loglog(LENGTHS, 1e3 * data.without, "o-", ms=3, color="tab:red", label="without a cache")
    axis.loglog(LENGTHS, 1e3 * data.with_cache, "o-", ms=3, color="tab:blue", label="with a cache")
    axis.set_xticks(LENGTHS, map(str, LENGTHS))
    axis.minorticks_off()
    axis.set_xlabel("length of the sequence")
    axis.set_title("ms for one more token")
    axis.legend()
    return figure


def facts(data: Measurements) -> Facts:
    """Times at the shortest and the longest length."""
    first, last = LENGTHS[0], LENGTHS[-1]
    ratio = data.without / data.with_cache
    return {
        f"ms with a cache at {first}": f"{1e3 * data.with_cache[0]:.1f}",
        f"ms with a cache at {last:,}": f"{1e3 * data.with_cache[-1]:.1f}",
        f"ms without at {first}": f"{1e3 * data.without[0]:.1f}",
        f"ms without at {last:,}": f"{1e3 * data.without[-1]:.0f}",
        f"ratio at {last:,}": f"{ratio[-1]:.0f}",
    }


FIGURE = Figure(measure, draw, facts, is_timed=True)
