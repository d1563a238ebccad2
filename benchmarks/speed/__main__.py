"""`make bench`: our engine beside CTranslate2 and `transformers`, in one run.

Engines take turns, round by round, each in a process of its own; medians are reported. They have
two threads, CTranslate2 also one, and ratios are to its faster one of each cell. Lengths are
forced, so that all do the same work; the examples' own lengths, ends and beam switches are a
workload of their own.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.harness import machine
from benchmarks.harness.system import THREADS, System, start_systems
from benchmarks.speed import genai, llama_cpp, poisson, report, roofline, served
from benchmarks.speed.checkpoints import bundle
from benchmarks.speed.prepare import prepare_all
from benchmarks.speed.questions import LETTERS, PICTURES, QWEN
from benchmarks.speed.work import VARIED, Cell, Item, Work, measure, random_work, varied_work
from examples.texts.grammar import sentences
from inference.openvino_core import why_not_here
from inference.processing.tokenizer_kinds import load_tokenizer

CACHE = Path(__file__).parents[1] / ".cache"
MAX_NEW_TOKENS = 64
ROUNDS = 16
RESULTS = Path(__file__).parents[1] / "results"
OURS = tuple(
    System(runtime, precision)
    for runtime in ("triptych-openvino", "triptych")
    for precision in ("int8", "fp32")
)
CTRANSLATE2 = tuple(
    System("ctranslate2", precision, threads)
    for precision in ("int8", "fp32")
    for threads in (THREADS, 1)
)
"""Its int8 is mostly faster with one thread than with two."""
TRANSFORMERS = (System("transformers", "fp32"),)
OUR_BF16 = System("triptych-openvino", "bf16")
GENAI = tuple(System(genai.RUNTIME, precision) for precision in ("int8", "bf16", "fp32"))
DECODER_SYSTEMS = (
    *(System("triptych-openvino", precision) for precision in ("int8", "int4", "fp32")),
    *(System(llama_cpp.RUNTIME, precision) for precision in ("q8_0", "q4_k_m", "fp32")),
    *(System(genai.RUNTIME, precision) for precision in ("int8", "int4", "fp32")),
)
PEERS = {genai.RUNTIME: genai.missing, llama_cpp.RUNTIME: llama_cpp.missing}
"""What says why a peer that is no dependency of ours cannot be measured."""
LIMITED: Mapping[str, Callable[[str, str, Path], str | None]] = {
    **PEERS,
    "triptych-openvino": lambda _, precision, __: why_not_here(precision, is_generator=True),
}
"""The same for all runtimes that are not everywhere, or not with every precision."""
FAST = (System("triptych", "int8-fast"),)
BATCHES = (1, 8, 32)
console = Console(highlight=False, width=200)


def main() -> int:
    """Plays every cell, prints the table, writes JSON and a plot."""
    arguments = parse_arguments()
    rows: list[dict[str, Any]] = []
    before = machine.load()
    for model in arguments.models:
        systems = [c for c in systems_of(model) if is_chosen(c, arguments.only)]
        for system in [c for c in systems if c.runtime in LIMITED]:
            reason = LIMITED[system.runtime](model, system.precision, CACHE)
            if reason is not None:
                console.print(f"left out: {system.label}: {reason}")
                systems.remove(system)
        if not systems:
            continue
        with ExitStack() as stack:
            with console.status(f"loading {model}"):
                prepare_all(model, systems, CACHE)
                loading = start_systems("benchmarks.speed.systems", systems, model, CACHE)
                processes = stack.enter_context(loading)
            for cell in cells(model, arguments.batches, arguments.beams, arguments.rounds):
                with console.status(cell.title):
                    results = measure(processes, cell)
                    for result in results:
                        same = report.same_tokens(result, results)
                        rows.append(report.row(result) | {"same_tokens": same})
                console.print(report.table(rows[-len(systems) :]))
    comparisons = report.comparisons(rows)
    console.print(report.table(rows))
    console.print(report.comparison_table(comparisons))
    if arguments.output:
        found = {"machine": machine.describe(), "rounds": arguments.rounds, "rows": rows}
        found |= {"comparisons": comparisons, **around(arguments)}
        found["load"] = {"before": before, "after": machine.load()}
        report.write(found, arguments.output)
    return 0


def around(arguments: argparse.Namespace) -> dict[str, Any]:
    """Further measurements: the gateway, random arrivals, the roofline."""
    if "marian-74m" not in arguments.models or arguments.only:
        return {}
    model, batches, rate = "marian-74m", arguments.batches, arguments.rate
    with console.status("through the gateway"):
        through = served.compare(model, "int8", CACHE, batches, arguments.rounds)
    console.print(report.served_table(through))
    with console.status("Poisson arrivals"):
        arriving = poisson.compare(model, "int8", CACHE, rate, int(20 * rate))
    console.print(report.poisson_table(arriving))
    bandwidth = machine.read_bandwidth()
    steps = [
        roofline.measure(bundle(name, precision, CACHE), rows, bandwidth)
        for name in arguments.models
        if KINDS[name] in ("translate", "generate")
        for precision in ("int8", "fp32")
        for rows in batches
    ]
    console.print(report.roofline_table(steps))
    return {"served": through, "poisson": arriving, "roofline": steps}


def parse_arguments() -> argparse.Namespace:
    """Flags of `python -m benchmarks.speed`."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    models = [*KINDS]
    default = [model for model in models if model not in (*PICTURES, *DECODERS, *READERS, *LARGE)]
    parser.add_argument("--models", nargs="+", choices=models, default=default)
    parser.add_argument("--batches", nargs="+", type=int, default=list(BATCHES))
    parser.add_argument("--beams", nargs="+", type=int, default=[1, 4])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rate", type=float, default=24.0, help="Poisson arrivals a second")
    parser.add_argument("--only", nargs="+", default=[], help="systems with this in their names")
    parser.add_argument("--output", type=Path, default=RESULTS)
    found = parser.parse_args()
    if min(found.rounds, found.rate, *found.batches, *found.beams) < 1:
        parser.error("--rounds, --rate, --batches and --beams are at least 1")
    systems = [each for model in found.models for each in systems_of(model)]
    if not any(is_chosen(each, found.only) for each in systems):
        names = " ".join(found.only)
        parser.error(f"--only {names}: no system of these models has this in its name")
    return found


def is_chosen(system: System, parts: Sequence[str]) -> bool:
    """Whether a system's label contains one of some texts; any does where there are none."""
    return not parts or any(part in system.label for part in parts)


DECODERS = ("qwen2.5-0.5b", "llama-3.2-1b")
"""Beside engines of decoders only; not among the default models."""
LARGE = {
    "nllb-600m": "sentences",
    "nllb-1.3b": "sentences",
    "m2m-418m": "sentences",
    "opus-mt-tc-big": "sentences",
    "flan-t5-large": "instructions",
    "bart-large": "documents",
}
"""Encoder-decoders that users of CTranslate2 serve; not among the default models."""
READERS = ("trocr-base", "blip-base")
"""Captioners of larger images, with beams; not among the default models."""
KINDS = {
    "marian-74m": "translate",
    "marian-17m": "translate",
    "gpt2-124m": "generate",
    "captioner-239m": "caption",
    **dict.fromkeys(READERS, "caption-384"),
    "example-es-en": "example",
    **dict.fromkeys(DECODERS, "generate"),
    **LARGE,
    **{model: model for model in PICTURES},
}
NEW_TOKENS = {"translate": 32, "generate": 64, "caption": 16, "caption-384": 20}
NEW_TOKENS |= dict.fromkeys(PICTURES, 64)
LENGTHS = {
    "translate": "16–48 → 32",
    "generate": "64 → 64",
    "caption": "224² → 16",
    "caption-384": "384² → 20",
    "example": "held-out sentences",
    **dict.fromkeys(PICTURES, f"512² + {2 * LETTERS} → 64"),
    "sentences": "8–64 → as many ± 25 %",
    "instructions": "128–384 → a quarter ± 40 %",
    "documents": "640–960 → a tenth ± 25 %",
}
VOCABULARY = 31_000


def systems_of(model: str) -> Sequence[System]:
    """CTranslate2 has no models with images, OpenVINO GenAI no SmolVLM, llama.cpp decoders only."""
    if model in DECODERS:
        return (*DECODER_SYSTEMS, *TRANSFORMERS)
    if KINDS[model].startswith("caption"):
        return (*OURS, *TRANSFORMERS)
    if model in PICTURES:
        return (*OURS, OUR_BF16, *(GENAI if model == QWEN else ()), *TRANSFORMERS)
    if model in LARGE:
        return tuple(each for each in (*OURS, *CTRANSLATE2) if each.precision == "int8")
    return (*OURS, *FAST, *CTRANSLATE2, *TRANSFORMERS)


def cells(model: str, batches: Sequence[int], beams: Sequence[int], rounds: int) -> Iterator[Cell]:
    """Every batch size and beam width that is measured for a model; new inputs each round."""
    kind = KINDS[model]
    for width in beams:
        if width > 1 and kind not in ("translate", "example", "caption-384", *VARIED):
            continue
        for batch in batches:
            works = (work(kind, batch, width, seed) for seed in range(rounds))
            yield Cell(model, LENGTHS[kind], tuple(works))


def work(kind: str, batch: int, beams: int, seed: int) -> Work:
    """One round's inputs."""
    if kind == "example":
        return example_work(batch, beams, seed)
    if kind in VARIED:
        return varied_work(kind, batch, beams, seed)
    return random_work(kind, batch, beams, VOCABULARY, seed, NEW_TOKENS[kind])


@cache
def sources(count: int) -> tuple[tuple[int, ...], ...]:
    """Distinct held-out sentences as token ids of the example."""
    tokenizer = load_tokenizer(bundle("example-es-en", "fp32", CACHE))
    texts = dict.fromkeys(pair.spanish for pair in sentences("held_out", 2 * count, seed=1))
    return tuple(tuple(tokenizer.encode(text)) for text in list(texts)[:count])


def example_work(batch: int, beams: int, seed: int) -> Work:
    """A batch that no other round has."""
    start = batch * seed
    items = tuple(Item(source=ids) for ids in sources(ROUNDS * 32)[start : start + batch])
    return Work(items, beams, MAX_NEW_TOKENS, is_forced=False)


if __name__ == "__main__":
    sys.exit(main())
