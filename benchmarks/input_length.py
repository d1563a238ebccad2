"""CPU time of one call by the length of the input: a Perceiver beside a BERT of its size.

`python -m benchmarks.input_length` writes `docs/images/perceiver-length.png` and the numbers to
`benchmarks/results/input_length.json`. Both fill eight masks in texts of bytes, with random
weights, in ONNX Runtime with one thread.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import onnxruntime as ort
import torch

from benchmarks.figures import style
from benchmarks.harness.machine import processor
from export.graphs.to_onnx import to_onnx
from export.registry import architecture
from inference.bundle.manifest import Role

ROOT = Path(__file__).parents[1]
IMAGE = ROOT / "docs" / "images" / "perceiver-length.png"
RESULTS = ROOT / "benchmarks" / "results" / "input_length.json"
LENGTHS = (128, 256, 512, 1024, 2048, 4096)
MASKS, ROUNDS = 8, 5
_BYTES = {"vocab_size": 262, "max_position_embeddings": max(LENGTHS)}
MODELS: Mapping[str, Mapping[str, Any]] = {
    "BERT": _BYTES
    | {
        "model_type": "bert",
        "architectures": ["BertForMaskedLM"],
        "hidden_size": 256,
        "num_hidden_layers": 6,
        "num_attention_heads": 4,
        "intermediate_size": 1024,
    },
    "Perceiver IO": _BYTES
    | {
        "model_type": "perceiver",
        "architectures": ["PerceiverForMaskedLM"],
        "d_model": 256,
        "num_latents": 128,
        "d_latents": 256,
        "num_self_attends_per_block": 5,
        "num_self_attention_heads": 4,
        "num_cross_attention_heads": 4,
        "self_attention_widening_factor": 4,
    },
}
"""Name → `config.json`: widths and layers of equal size, 128 latents."""
Call = Callable[[int], None]


def main(given: Sequence[str] | None = None) -> None:
    """Measures in turns, then writes and draws."""
    options = parser().parse_args(given)
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        built = {name: build(values, Path(folder) / name) for name, values in MODELS.items()}
    calls = {name: call for name, (call, _) in built.items()}
    found = {
        "processor": processor(),
        "parameters": {name: count for name, (_, count) in built.items()},
        "cpu_ms": {str(length): timed(calls, length, options.rounds) for length in LENGTHS},
    }
    options.results.parent.mkdir(parents=True, exist_ok=True)
    options.results.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    draw(found, options.image)
    print(json.dumps(found, indent=1))


def parser() -> argparse.ArgumentParser:
    """Flags of `python -m benchmarks.input_length`."""
    made = argparse.ArgumentParser(prog="benchmarks.input_length", description=__doc__)
    made.add_argument("--rounds", type=int, default=ROUNDS, help="of each length (%(default)s)")
    made.add_argument("--image", type=Path, default=IMAGE)
    made.add_argument("--results", type=Path, default=RESULTS)
    return made


def build(values: Mapping[str, Any], folder: Path) -> tuple[Call, int]:
    """A call of a model's graph with a text of so many tokens, and the number of parameters."""
    declared = architecture(values["model_type"])
    network = declared.build(declared.read_config(values)).eval()
    with torch.no_grad():
        for parameter in network.parameters():
            torch.nn.init.normal_(parameter, std=0.02)
    lowering = declared.graphs(network, None).lowerings["text"]
    folder.mkdir()
    path = folder / lowering.graph.file
    to_onnx(lowering, path)
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = ort.InferenceSession(path.read_bytes(), options)
    names = {port.role: port.name for port in lowering.graph.inputs}

    def call(length: int) -> None:
        inputs = {
            Role.TOKENS: np.arange(length)[None] % 256 + 6,
            Role.LENGTHS: np.array([length], dtype=np.int32),
            Role.POSITIONS: np.arange(MASKS)[None] * (length // MASKS),
            Role.CHOICES: np.zeros((1, 1), dtype=np.int64),
        }
        session.run(None, {names[role]: value for role, value in inputs.items()})

    return call, sum(parameter.numel() for parameter in network.parameters())


def timed(calls: Mapping[str, Call], length: int, rounds: int) -> dict[str, float]:
    """Median CPU time of a call in milliseconds; the models take turns."""
    spent: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(rounds + 1):
        for name, call in calls.items():
            start = time.process_time()
            call(length)
            if turn:  # the first one allocates
                spent[name].append(1000 * (time.process_time() - start))
    return {name: round(median(times), 2) for name, times in spent.items()}


def draw(found: Mapping[str, Any], path: Path) -> None:
    """Time over length, both logarithmic."""
    times = found["cpu_ms"]
    with style.settings():
        canvas, axes = style.canvas(4.6, 2.9)
        axis = axes[0][0]
        for name, count in found["parameters"].items():
            label = f"{name}, {count / 1e6:.1f} M parameters"
            axis.loglog(LENGTHS, [times[str(n)][name] for n in LENGTHS], "o-", label=label)
        axis.set_xticks(LENGTHS, map(str, LENGTHS), minor=False)
        axis.minorticks_off()
        axis.set_xlabel("bytes of the input")
        axis.set_ylabel("CPU time of a call, ms")
        axis.legend()
        style.save(canvas, path)


if __name__ == "__main__":
    main()
