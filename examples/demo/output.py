"""What the demo prints: each call with its duration, in one console."""

import time
from collections.abc import Callable
from typing import TypeVar

from rich.console import Console

SHADES = " ░▒▓█"
Answer = TypeVar("Answer")
console = Console(highlight=False)


def timed(title: str, call: Callable[[], Answer]) -> Answer:
    """The call's result, after printing its description and duration."""
    started = time.perf_counter()
    answer = call()
    milliseconds = (time.perf_counter() - started) * 1000
    console.print(f"[bold]{title}[/bold]  {milliseconds:.0f} ms")
    return answer


def shades(weights: list[float]) -> str:
    """One character a weight, from blank for 0 to a full block for 1."""
    return "".join(SHADES[min(round(4 * weight), 4)] for weight in weights)
