"""Memory of a KV cache, computed from published configurations by the engine's own arithmetic.

MHA: Vaswani et al. 2017 (arXiv 1706.03762); MQA: Shazeer 2019 (arXiv 1911.02150); GQA: Ainslie et
al. 2023 (arXiv 2305.13245); windows: Beltagy et al. 2020 (arXiv 2004.05150).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from matplotlib.figure import Figure as Canvas

from benchmarks.figures import style
from benchmarks.figures.figure import Facts, Figure, percent
from export.catalog.entries import read_catalog
from export.layers.attention.cached_attention import CachedAttention
from export.registry import architecture
from inference.engine.state.group_state import MemoryModel

NAMES = (
    "openai-community/gpt2",
    "HuggingFaceTB/SmolLM2-1.7B-Instruct",
    "meta-llama/Llama-3.2-1B",
    "TinyLlama/TinyLlama-1.1B-Chat-v1.0",
    "Qwen/Qwen2.5-1.5B-Instruct",
    "google/gemma-2-2b-it",
    "google/gemma-3-270m-it",
)
"""Of the catalog."""
WINDOWED = NAMES[-2:]
LONGEST = 8192
KIB, MIB = 2**10, 2**20


@dataclass(frozen=True)
class Cache:
    """The cache of one published checkpoint, in float32.

    Attributes:
        heads: Of queries, in each layer.
        groups: Of keys and values.
        position_bytes: Of one position of one row, all layers.
        windows: Of each layer; None where it sees every position.
    """

    heads: int
    groups: int
    position_bytes: int
    windows: tuple[int | None, ...]

    @property
    def kind(self) -> str:
        """How keys and values are shared."""
        if self.groups == self.heads:
            return "MHA"
        return "MQA" if self.groups == 1 else "GQA"

    @property
    def unshared_bytes(self) -> int:
        """Of one position, if each query head had a key and value head of its own."""
        return self.position_bytes * self.heads // self.groups

    def bytes(self, length: int) -> int:
        """Of one sequence, as the engine keeps it: all positions of all layers."""
        return self.position_bytes * length

    def windowed_bytes(self, length: int) -> int:
        """Of one sequence, if each layer kept only what it can still see."""
        layer = self.position_bytes // len(self.windows)
        return sum(layer * min(length, window or length) for window in self.windows)


Measurements = dict[str, Cache]


def measure() -> Measurements:
    """The caches of the named checkpoints."""
    return {one.name: _cache(one.config) for one in read_catalog() if one.name in NAMES}


def _cache(values: object) -> Cache:
    """Of a `config.json`; the network is built without memory for weights."""
    assert isinstance(values, dict)
    declared = architecture(values["model_type"])
    config = declared.read_config(values)
    with torch.device("meta"):
        network = declared.build(config)
        states = declared.graphs(network, None).states
    layers = [part for part in network.modules() if isinstance(part, CachedAttention)]
    first = layers[0].heads
    footprint = MemoryModel.of(states)
    windows = tuple(layer.heads.window for layer in layers)
    return Cache(first.count, first.groups, footprint.position, windows)


def draw(data: Measurements) -> Canvas:
    """Bytes of a position, and of a sequence by its length."""
    figure, ((first, second),) = style.canvas(8.4, 3, 1, 2)
    rows = [
        f"{name.partition('/')[2]}\n{cache.kind}, {cache.heads} / {cache.groups} heads"
        for name, cache in data.items()
    ]
    places = np.arange(len(rows))
    unshared = [cache.unshared_bytes / KIB for cache in data.values()]
    held = [cache.position_bytes / KIB for cache in data.values()]
    first.barh(places, unshared, color="lightgray", label="one for each query head")
    bars = first.barh(places, held, color="tab:blue", label="as configured")
    first.bar_label(bars, fmt="%.0f", padding=2, fontsize=6)
    first.set_yticks(places, rows, fontsize=6)
    first.invert_yaxis()
    first.set_title("KiB of cache a position, float32")
    first.legend(loc="lower right")
    lengths = np.arange(0, LONGEST + 1, 64)
    for name, colour in zip(WINDOWED, ("tab:blue", "tab:orange"), strict=True):
        cache, short = data[name], name.partition("/")[2]
        full = [cache.bytes(int(length)) / MIB for length in lengths]
        kept = [cache.windowed_bytes(int(length)) / MIB for length in lengths]
        second.plot(lengths, full, color=colour, label=short)
        second.plot(lengths, kept, "--", color=colour, label=f"{short}, windows only")
    second.set_title("MiB of cache by length, one sequence")
    second.set_xlabel("positions")
    second.legend()
    return figure


def facts(data: Measurements) -> Facts:
    """KiB of a position, and what a cache of windows would save."""
    found = {
        f"{name}, KiB a position": f"{cache.position_bytes / KIB:.0f}"
        for name, cache in data.items()
    }
    for name in WINDOWED:
        share = data[name].windowed_bytes(LONGEST) / data[name].bytes(LONGEST)
        found[f"{name}, share of {LONGEST:,} positions within windows"] = percent(share, 0)
    return found


FIGURE = Figure(measure, draw, facts)
