"""Makes the figures of `examples/attention`, and prints the numbers that the page states.

`python -m benchmarks.figures rotary` writes `attention-rotary.png` there; without a name, all
figures. Those of served models start a stack of their own (`make export` first), or use `--url`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.figures import NAMES, style
from benchmarks.figures.figure import Facts, figure, picture
from benchmarks.harness.machine import processor
from examples.demo.server import serving
from triptych import Client

ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "examples" / "attention" / "images"
FACTS = ROOT / "benchmarks" / "results" / "figures.json"
PROCESSORS = "processors"
"""Name in the file of the numbers: the processor that each figure was measured on."""


def main(given: Sequence[str] | None = None) -> None:
    """Makes the chosen figures; each is written as soon as it is drawn."""
    options = parser().parse_args(given)
    chosen = options.names or NAMES
    is_served = any(figure(name).is_served for name in chosen)
    with client(options.url, options.repository) if is_served else no_client() as connected:
        for name in chosen:
            facts = make(name, connected, options.folder)
            print(f"{picture(options.folder, name)}", *_lines(facts), sep="\n", flush=True)
            record(options.facts, name, facts)


def parser() -> argparse.ArgumentParser:
    """Flags of `python -m benchmarks.figures`."""
    made = argparse.ArgumentParser(prog="benchmarks.figures", description=__doc__)
    made.add_argument("names", nargs="*", choices=[*NAMES, []], metavar="NAME", help=str(NAMES))
    made.add_argument("--folder", type=Path, default=IMAGES, help="of the pictures")
    made.add_argument("--facts", type=Path, default=FACTS, help="file of the numbers")
    made.add_argument("--repository", type=Path, default=Path("model_repository"))
    made.add_argument("--url", help="of a running gateway that serves the examples")
    return made


def make(name: str, connected: Client | None, folder: Path) -> Facts:
    """Measures and draws one figure; returns its numbers."""
    declared = figure(name)
    data = declared.measure(connected) if declared.is_served else declared.measure()
    with style.settings():
        style.save(declared.draw(data), picture(folder, name))
    return declared.facts(data)


def record(path: Path, name: str, facts: Facts) -> None:
    """Replaces the numbers of one figure in the file, in the order of the page."""
    known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    known[name] = dict(facts)
    known[PROCESSORS] = known.get(PROCESSORS, {}) | {name: processor()}
    ordered = {each: known[each] for each in (*NAMES, PROCESSORS) if each in known}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(ordered, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


@contextmanager
def client(url: str | None, repository: Path) -> Iterator[Client]:
    """A client of the gateway at `url`, or of a stack that runs as long as the block."""
    if url is not None:
        with Client(url, timeout=300) as connected:
            yield connected
        return
    with serving(repository) as own, Client(own, timeout=300) as connected:
        yield connected


@contextmanager
def no_client() -> Iterator[None]:
    """Stands for the client of figures that use none."""
    yield None


def _lines(facts: Facts) -> list[str]:
    return [f"  {value:>12}  {what}" for what, value in facts.items()]


if __name__ == "__main__":
    main()
