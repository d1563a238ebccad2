"""Which runtime serves a bundle: by rule, and the fastest of those that pass the gate.

They take turns on this machine over a fixed panel, in the classes and with the configuration that
serve them; the geometric mean over the panel of their medians decides. The panel of a generator is
greedy decoding of one sequence and of eight.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from statistics import geometric_mean, median

import numpy as np
from rich.table import Table

from export.architecture import Graphs, Lowering
from export.decoder_graphs.image_tokens import ImageTokenStep
from export.layers.attention.attention import Attention
from export.layers.attention.cached_attention import CachedAttention
from export.layers.decoder import TransformerDecoder
from export.parity.graph_runs import missing_package
from export.parity.token_parity import random_request
from export.precision import Precision, Runtime
from export.targets.instance_config import open_call, panel
from export.triton_config import THREADS
from inference.bundle.manifest import Bundle, Role
from inference.engine.engine import decode
from inference.engine.runner_factory import make_runner
from inference.errors import SetupError

GENERATOR_FILES = ("admit.onnx", "step.onnx")


def check_runtime(
    graphs: Graphs, runtime: Runtime, precision: Precision, *, is_calibrated: bool = False
) -> None:
    """Refuses combinations that nothing serves.

    Args:
        is_calibrated: Whether the user gives samples for calibration.

    Raises:
        SetupError: a generator that the runtime cannot decode, a precision that the runtime lacks
            or this processor, or samples that nothing is calibrated on.
    """
    if is_calibrated and "step" in graphs.lowerings:
        raise SetupError(
            "--calibration is for stateless models: the int8 cache of a generator is calibrated on "
            "what the model itself generates"
        )
    if is_calibrated and (precision is not Precision.INT8 or runtime is Runtime.ONNXRUNTIME):
        raise SetupError(
            "--calibration is for --precision int8 with --runtime openvino or auto, whose scales "
            "are fixed: other graphs need no data"
        )
    if runtime is Runtime.OPENVINO and "step" in graphs.lowerings:
        reason = why_not_in_blocks(graphs)
        if reason is not None:
            raise SetupError(
                f"--runtime openvino cannot decode this model: {reason}; use onnxruntime"
            )
    has_int4 = runtime in (Runtime.OPENVINO, Runtime.AUTO) and "step" in graphs.lowerings
    if precision is Precision.INT4 and not has_int4:
        raise SetupError("--precision int4 is for generators with --runtime openvino")
    if runtime is Runtime.TENSORRT and "step" in graphs.lowerings:
        raise SetupError("--runtime tensorrt is for stateless models: this one generates tokens")
    if runtime in (Runtime.AUTO, Runtime.TENSORRT):
        return
    lacks = Precision.BF16 if runtime is Runtime.ONNXRUNTIME else Precision.INT8_FAST
    if precision is lacks:
        raise SetupError(f"--precision {precision} is not available with --runtime {runtime}")
    if runtime is Runtime.OPENVINO:
        _check_processor(precision, is_generator="step" in graphs.lowerings)


def _check_processor(precision: Precision, *, is_generator: bool) -> None:
    """Refuses what OpenVINO would compute otherwise here than elsewhere: no gate could judge it.

    Raises:
        SetupError: says why, and what to use; or OpenVINO is not installed.
    """
    try:
        from inference.openvino_core import why_not_here
    except ImportError as error:
        raise SetupError(missing_package("openvino")) from error
    reason = why_not_here(precision, is_generator=is_generator)
    if reason is not None:
        raise SetupError(f"--runtime openvino has no {precision} here: {reason}")


def check_precision(graphs: Graphs, precision: Precision) -> None:
    """Refuses what the gate cannot judge.

    Raises:
        SetupError: a lower precision of a graph that chooses places of an image.
    """
    chooses = any(each.graph.output(Role.CHOSEN) for each in graphs.lowerings.values())
    if chooses and precision is not Precision.FP32:
        raise SetupError(
            f"--precision {precision} is not available for this model: it chooses regions by their "
            "scores, and what another precision chooses cannot be verified; use fp32"
        )


def why_not_in_blocks(graphs: Graphs) -> str | None:
    """Why OpenVINO's paged attention cannot decode a generator; None where it can."""
    step, admit = graphs.lowerings["step"].module, graphs.lowerings.get("admit")
    decoder = getattr(step, "decoder", None)
    if not isinstance(decoder, TransformerDecoder):
        return "its decoder is not a Transformer"
    if any(state.prefix for state in graphs.states):
        return "its caches begin with the positions of an image"
    pixels = None if admit is None else admit.graph.input(Role.PIXELS)
    has_images = pixels is not None and isinstance(pixels.shape[1], str)
    if has_images and not isinstance(step, ImageTokenStep):
        return "its layers attend to the images of prompts"
    if decoder.heads.is_prefix_lm:
        return "its prompts are read in both directions"
    if isinstance(step, ImageTokenStep) and step.has_blocks:
        return "its images are read in both directions"
    if type(decoder).position_bias is not TransformerDecoder.position_bias:
        return "its attention has a bias of relative positions"
    layers = [each for each in decoder.modules() if isinstance(each, Attention)]
    cached = (each for each in layers if isinstance(each, CachedAttention))
    if any(type(each).forward is not CachedAttention.forward for each in cached):
        return "its attention reads more than its cache"
    if any(each.heads.soft_cap is not None for each in layers):
        return "its attention scores are capped"
    return None


def lower_for(lowering: Lowering, runtime: Runtime) -> Lowering:
    """A graph's lowering for a runtime.

    OpenVINO has none of ONNX Runtime's fused operators, but for those of a generator, which it
    reads: paged attention takes the place of one of them.
    """
    is_of_generator = lowering.graph.file in GENERATOR_FILES
    is_fused = runtime is Runtime.ONNXRUNTIME or is_of_generator
    return lowering if is_fused else replace(lowering, is_fused=False)


ROUNDS = 7
REST_S = 0.05
"""Between two turns, so that no runtime's spinning threads are awake in the other one's turn."""

PROMPT, NEW_TOKENS = 24, 24
"""Of each sequence that a generator decodes."""
WORDS_WITH_IMAGE = 21
"""Of a prompt with one image, beside the image's tokens."""

Milliseconds = Mapping[str, Mapping[str, float]]
"""Cell of the panel → runtime → median of a call."""


@dataclass(frozen=True)
class Choice:
    """The runtime that was chosen, and why.

    Attributes:
        relative: Runtime → its time over that of the chosen one, geometric mean over the panel.
        dropped: Runtime → why it cannot be chosen.
    """

    runtime: str
    milliseconds: Milliseconds
    relative: Mapping[str, float]
    dropped: Mapping[str, str]

    def table(self) -> Table:
        """A line a cell, a column a runtime."""
        names = list(self.relative)
        made = Table("milliseconds, medians", *names)
        for cell, times in self.milliseconds.items():
            made.add_row(cell, *(f"{times[name]:.2f}" for name in names))
        made.add_row("relative time", *(f"{self.relative[name]:.2f}" for name in names))
        return made


def choose(milliseconds: Milliseconds, dropped: Mapping[str, str]) -> Choice:
    """The runtime of the least geometric mean; of equal ones the first."""
    names = list(next(iter(milliseconds.values())))
    means = {name: geometric_mean(times[name] for times in milliseconds.values()) for name in names}
    chosen = min(means, key=lambda name: means[name])
    relative = {name: round(mean / means[chosen], 3) for name, mean in means.items()}
    return Choice(chosen, milliseconds, relative, dict(dropped))


def time_calls(bundles: Mapping[str, Bundle], rounds: int = ROUNDS) -> dict[str, dict[str, float]]:
    """Median milliseconds of each call of the panel, by runtime.

    Args:
        bundles: Runtime → a bundle with its graphs in place.
    """
    calls = {name: _calls(bundle) for name, bundle in bundles.items()}
    spent: dict[str, dict[str, list[float]]] = {
        cell: {name: [] for name in bundles} for cell in next(iter(calls.values()))
    }
    order, shuffle = list(bundles), random.Random(0)
    for _ in range(rounds):
        shuffle.shuffle(order)
        for name in order:
            time.sleep(REST_S)
            for cell, call in calls[name].items():
                call()  # the first one after a pause is slower
                started_s = time.perf_counter()
                call()
                spent[cell][name].append(1000 * (time.perf_counter() - started_s))
    return {
        cell: {name: round(median(times), 3) for name, times in by_name.items()}
        for cell, by_name in spent.items()
    }


def _calls(bundle: Bundle) -> dict[str, Callable[[], object]]:
    """Cell of the panel → a call of the bundle's graphs."""
    if "step" in bundle.manifest.graphs:
        return _decodings(bundle)
    cells = panel(bundle)
    graphs = {key: open_call(bundle, key) for key in dict.fromkeys(k for k, _ in cells.values())}
    return {cell: partial(graphs[key], feeds) for cell, (key, feeds) in cells.items()}


def _decodings(bundle: Bundle) -> dict[str, Callable[[], object]]:
    """Greedy decoding of random inputs to a fixed length."""
    runner, manifest = make_runner(bundle, threads=THREADS), bundle.manifest
    assert manifest.generation is not None
    longest = manifest.limits.max_total_tokens or PROMPT + NEW_TOKENS
    count = min(NEW_TOKENS, longest // 2)
    update = {"num_beams": 1, "num_return_sequences": 1, "do_sample": False, "eos_token_ids": ()}
    update |= {"max_new_tokens": count, "min_new_tokens": 0, "forced_eos_token_id": None}
    rules = manifest.generation.model_copy(update=update)
    random, has_images = np.random.default_rng(0), manifest.images is not None
    prompt = min(PROMPT, longest - count, manifest.limits.max_input_tokens or PROMPT)
    words = WORDS_WITH_IMAGE if has_images else prompt
    sizes = {
        f"greedy, {size} sequences": [
            random_request(manifest, rules, words, random) for _ in range(size)
        ]
        for size in (1, 8)
    }
    return {cell: partial(decode, runner, requests) for cell, requests in sizes.items()}
