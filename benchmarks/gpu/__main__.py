"""`make gpu-check`: what only a card can show, in one run; fails if a check fails.

In this order: the provider places every node; float32 graphs equal the CPU's; scores and tokens in
float16 and bfloat16; captured graphs change nothing; beams; then speed beside the roofline and
others on the same card.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.encoders.models import MODELS as ENCODERS
from benchmarks.gpu import decoding, speed, stateless
from benchmarks.gpu.card import (
    EXAMPLES,
    FP16,
    FP32,
    Card,
    Outcome,
    bandwidth,
    example,
    full_size,
    table,
)
from benchmarks.harness import machine
from benchmarks.harness.machine import write_json
from export.parity.verify import bundle_path
from export.precision import Precision
from export.targets.cuda.assignment import SHAPE_ARITHMETIC
from inference.bundle.manifest import Bundle
from inference.engine.runners.cuda.installation import check_card
from inference.engine.runners.ort.sessions import session_options
from inference.errors import DeviceError

RESULTS = Path(__file__).parents[1] / "results" / "gpu.json"
FULL_SIZE = ("gpt2-124m", "marian-74m", "llama-3.2-1b", *ENCODERS)
"""Models whose speed is measured."""
console = Console(highlight=False, width=200)


def main(given: Sequence[str] | None = None) -> int:
    """Checks, prints the table, writes JSON."""
    arguments = _parse(given)
    try:
        check_card(arguments.card)
    except DeviceError as error:
        print(f"gpu-check: {error.message}", file=sys.stderr)
        return 2
    card, outcomes = Card(arguments.card), list[Outcome]()
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary)
        models = {name: EXAMPLES[name] for name in arguments.models}
        checks = check(card, models, folder)
        measurements = measure(card, folder, arguments.speed) if arguments.speed else iter(())
        for outcomes_of in (checks, measurements):
            for outcome in outcomes_of:
                console.print(table([outcome]))
                outcomes.append(outcome)
    console.print(table(outcomes))
    write(card, outcomes, arguments.output)
    return int(any(each.is_passed is False for each in outcomes))


def check(card: Card, models: dict[str, tuple[Precision, ...]], folder: Path) -> Iterator[Outcome]:
    """Every check of every bundle; an error is a failed check."""
    for name, precisions in models.items():
        for precision in precisions:
            bundle = example(name, precision, folder)
            is_on_cpu = precision in (FP32, FP16)
            reference = bundle if is_on_cpu else example(name, FP32, folder)
            yield from of_bundle(card, bundle, reference)


def of_bundle(card: Card, bundle: Bundle, reference: Bundle) -> Iterator[Outcome]:
    """The checks of one bundle beside the CPU."""
    manifest = bundle.manifest
    checks = [lambda: placement(card, bundle)]
    if manifest.generator is None:
        checks.append(lambda: stateless.parity(card, bundle, reference))
    else:
        checks.append(lambda: decoding.scores(card, bundle, reference))
        checks.append(lambda: decoding.tokens(card, bundle, reference, beams=1))
        checks.append(lambda: decoding.graphs_on_and_off(card, bundle))
        checks.append(lambda: decoding.tokens(card, bundle, reference, beams=4))
    for each in checks:
        yield _guarded(each, manifest.name, manifest.precision)


def measure(card: Card, folder: Path, names: Sequence[str] = FULL_SIZE) -> Iterator[Outcome]:
    """Speed beside the roofline and others; there is no bound."""
    bytes_per_s = bandwidth(card.device())
    yield Outcome("bandwidth", "", "", None, {"gb_per_s": bytes_per_s / 1e9})
    for name in names:
        try:
            bundle = full_size(name, FP16, folder)
        except Exception as error:
            yield _failed(error, name, "fp16")
            continue
        of_model = _measure_encoder if name in ENCODERS else _measure_generator
        for run in of_model(card, bundle, folder, bytes_per_s):
            yield _guarded(run, name, "fp16")


def _measure_generator(
    card: Card, bundle: Bundle, folder: Path, bytes_per_s: float
) -> Iterator[Callable[[], Outcome]]:
    name = bundle.manifest.name
    has_source = "admit" in bundle.manifest.graphs
    cells = [(batch, 1) for batch in speed.BATCHES]
    cells += [(8, 4)] if has_source else []
    for batch, beams in cells:
        yield partial(speed.ours, card, bundle, batch, bytes_per_s, beams=beams)
        for of_other in (speed.of_transformers, speed.of_ctranslate2):
            yield partial(of_other, name, batch, folder, card.number, beams)


def _measure_encoder(
    card: Card, bundle: Bundle, folder: Path, bytes_per_s: float
) -> Iterator[Callable[[], Outcome]]:
    for key in bundle.manifest.graphs:
        for batch in speed.BATCHES:
            yield partial(stateless.speed, card, bundle, key, batch)
            for is_compiled in (False, True):
                given = (bundle.manifest.name, key, batch, folder, card.number)
                yield partial(stateless.speed_of_transformers, *given, is_compiled=is_compiled)


def _guarded(run: Callable[[], Outcome], model: str, precision: str) -> Outcome:
    """An error is a failed check of its own: the next ones run."""
    try:
        return run()
    except Exception as error:
        return _failed(error, model, precision)


def _failed(error: Exception, model: str, precision: str) -> Outcome:
    found = {"error": f"{type(error).__name__}: {error}"[:500]}
    return Outcome("error", model, precision, False, found)


def write(card: Card, outcomes: Sequence[Outcome], output: Path) -> None:
    """The outcomes, the card and the machine, as JSON."""
    found: dict[str, Any] = {"card": card.name, "machine": machine.describe()}
    found["outcomes"] = [each.as_json() for each in outcomes]
    write_json(found, output)


def _parse(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make gpu-check", description=__doc__)
    parser.add_argument("--card", type=int, default=0, help="its number")
    parser.add_argument("--models", nargs="*", choices=[*EXAMPLES], default=[*EXAMPLES])
    parser.add_argument("--speed", nargs="*", choices=FULL_SIZE, default=FULL_SIZE)
    parser.add_argument("--no-speed", dest="speed", action="store_const", const=())
    parser.add_argument("--folder", type=Path, help="keeps bundles and checkpoints here")
    parser.add_argument("--output", type=Path, default=RESULTS)
    return parser.parse_args(given)


def placement(card: Card, bundle: Bundle) -> Outcome:
    """Nodes by provider; those on another one may only compute shapes."""
    device = card.device()
    on_device, elsewhere = 0, Counter[str]()
    for key in bundle.manifest.graphs:
        options = session_options(1)
        options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        session = device.open(bundle_path(bundle, key), options, is_captured=key == "step")
        for part in session.get_provider_graph_assignment_info():
            operators = Counter(node.op_type for node in part.get_nodes())
            if part.ep_name == device.provider:
                on_device += operators.total()
            else:
                elsewhere += operators
    passed = on_device > 0 and set(elsewhere) <= SHAPE_ARITHMETIC
    found = {"on_device": on_device, "elsewhere": dict(elsewhere)}
    return Outcome("placement", bundle.manifest.name, bundle.manifest.precision, passed, found)


if __name__ == "__main__":
    sys.exit(main())
