"""The demo: start Triton and the gateway, send one request to each endpoint, stop.

Run by `make demo`, which exports the example checkpoints first. Everything that it does, a user can
do with the `triptych` command line or the client.
"""

from __future__ import annotations

import argparse
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from rich.console import Console
from rich.table import Table

from export.examples.paragraphs import SPANISH as PARAGRAPH
from triptych import Client
from triptych.errors import TriptychError

ROOT = Path(__file__).resolve().parent.parent
PICTURES = ROOT / "export" / "examples" / "pictures"
READY_TIMEOUT_S = 120.0

Answer = TypeVar("Answer")
console = Console(highlight=False)


def main() -> int:
    """Serve, ask, print, stop; 0 when every endpoint answered."""
    arguments = parse_arguments()
    started = time.perf_counter()
    with serving(arguments.repository) as url, Client(url, timeout=60) as client:
        console.print(f"ready in {time.perf_counter() - started:.1f} s at {url}\n")
        show_models(client)
        show_translation(client)
        picture = sorted(PICTURES.iterdir())[0]
        caption = show_caption(client, picture)
        show_zero_shot(client, picture, caption)
    console.print("stopped; `make serve` stays up")
    return 0


def parse_arguments() -> argparse.Namespace:
    """Flags of `python clients/demo.py`."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repository", type=Path, default=ROOT / "model_repository")
    return parser.parse_args()


@contextmanager
def serving(repository: Path) -> Iterator[str]:
    """`triptych serve` on free ports for as long as the block runs; yields the gateway's URL."""
    http_port, grpc_port = free_port(), free_port()
    command = [
        Path(sys.executable).with_name("triptych"),
        *("serve", "--repository", repository),
        *("--http-port", str(http_port), "--grpc-port", str(grpc_port)),
    ]
    with console.status("starting Triton and the gateway"):
        server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            url = f"http://127.0.0.1:{http_port}"
            wait_until_ready(url, server)
        except BaseException:
            stop(server)
            raise
    try:
        yield url
    finally:
        stop(server)


def wait_until_ready(url: str, server: subprocess.Popen[bytes]) -> None:
    """Return when `/ready` says so.

    Raises:
        SystemExit: the server ended, or was not ready in time.
    """
    deadline = time.monotonic() + READY_TIMEOUT_S
    with Client(url, timeout=5) as client:
        while time.monotonic() < deadline:
            if server.poll() is not None:
                raise SystemExit(f"triptych serve ended with code {server.returncode}")
            try:
                if client.ready():
                    return
            except TriptychError:
                pass
            time.sleep(0.1)
    raise SystemExit(f"not ready after {READY_TIMEOUT_S:.0f} s")


def stop(server: subprocess.Popen[bytes]) -> None:
    """End the server as Ctrl-C would, and wait for it."""
    if server.poll() is None:
        server.send_signal(signal.SIGTERM)
    server.wait(timeout=60)


def free_port() -> int:
    """A TCP port of loopback that nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def timed(title: str, call: Callable[[], Answer]) -> Answer:
    """The call's answer, after printing what was asked and how long it took."""
    started = time.perf_counter()
    answer = call()
    milliseconds = (time.perf_counter() - started) * 1000
    console.print(f"[bold]{title}[/bold]  {milliseconds:.0f} ms")
    return answer


def show_models(client: Client) -> None:
    """What is being served."""
    table = Table("model", "task", "precision", box=None)
    for model in timed("GET /v1/models", client.models).data:
        table.add_row(model.id, ", ".join(model.tasks), model.precision)
    console.print(table, "")


def show_translation(client: Client) -> None:
    """A Spanish paragraph in English."""
    answer = timed("POST /v1/translate", lambda: client.translate(PARAGRAPH, source="es"))
    console.print(f"{PARAGRAPH.strip()}\n[cyan]{answer.data[0].text.strip()}[/cyan]\n")


def show_caption(client: Client, picture: Path) -> str:
    """One picture in words; the caption."""
    answer = timed(f"POST /v1/caption  {picture.name}", lambda: client.caption(picture))
    caption = str(answer.data[0].text)
    console.print(f"[cyan]{caption}[/cyan]\n")
    return caption


def show_zero_shot(client: Client, picture: Path, caption: str) -> None:
    """The same picture among labels that it was never trained on."""
    labels = zero_shot_labels(caption)
    answer = timed(
        f"POST /v1/zero-shot  {picture.name}, {len(labels)} labels",
        lambda: client.zero_shot(picture, labels=labels),
    )
    for entry in answer.data[0].labels[:4]:
        console.print(f"  {entry.score:6.1%}  [cyan]{entry.label}[/cyan]")
    console.print()


def zero_shot_labels(caption: str) -> list[str]:
    """The caption and variants of it that differ in one colour."""
    colours = ("red", "green", "blue", "yellow", "purple", "orange", "white", "black")
    truth = caption.removeprefix("a ").removeprefix("an ")
    colour = next((word for word in truth.split() if word in colours), "")
    others = (truth.replace(colour, other, 1) for other in colours) if colour else ()
    return list(dict.fromkeys([truth, *others]))


if __name__ == "__main__":
    sys.exit(main())
