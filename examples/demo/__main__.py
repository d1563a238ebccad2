"""The demo: start Triton and the gateway, send one request to each endpoint, stop.

Run by `make demo`, which exports the example checkpoints first. It uses only the `triptych` command
line and the client.
"""

from __future__ import annotations

import argparse
import sys
import time
from functools import partial
from pathlib import Path

from rich.table import Table

from examples.demo.encoders import (
    AGREEMENT,
    BINDINGS,
    CAPTIONERS,
    CAPTIONS,
    CONVERSATIONS,
    LABELS,
    PICTURES,
    QUESTIONS,
    console,
    shades,
    show_encoders,
    timed,
)
from examples.demo.server import local_client, serving
from examples.texts.grammar import SPANISH as PARAGRAPH
from triptych import Client


def main() -> int:
    """Starts the server, calls every endpoint, stops; returns 0 when every call succeeded."""
    arguments = parse_arguments()
    started = time.perf_counter()
    with serving(arguments.repository) as url, local_client(url, timeout=60) as client:
        console.print(f"ready in {time.perf_counter() - started:.1f} s at {url}\n")
        show_models(client)
        show_translation(client)
        show_alignment(client)
        show_captions(client, PICTURES / "scene-1.png", PICTURES / "scene-3.png")
        show_zero_shot(client, PICTURES / "scene-4.png")
        show_embeddings(client)
        show_encoders(client, PICTURES / "scene-3.png")
        show_examples(client)
        show_chat(client)
        show_questions(client, PICTURES / "scene-1.png")
        show_stream(client)
    console.print("stopped; `make serve` stays up")
    return 0


def parse_arguments() -> argparse.Namespace:
    """Flags of `python -m examples.demo`."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repository", type=Path, default=Path("model_repository"))
    return parser.parse_args()


def show_models(client: Client) -> None:
    """Prints the served models."""
    table = Table("model", "task", "precision", box=None)
    for model in timed("GET /v1/models", client.models).data:
        table.add_row(model.id, ", ".join(model.tasks), model.precision)
    console.print(table, "")


def show_translation(client: Client) -> None:
    """Prints the English translation of a Spanish paragraph."""
    answer = timed("POST /v1/translate", lambda: client.translate(PARAGRAPH, source="es"))
    console.print(f"{PARAGRAPH.strip()}\n[cyan]{str(answer.data[0].text).strip()}[/cyan]\n")


def show_alignment(client: Client) -> None:
    """Prints a French translation and the alignment of each token (Bahdanau 2015, §5.2)."""
    answer = timed(
        "POST /v1/translate  return_attention",
        lambda: client.translate(AGREEMENT, model="example-en-fr", return_attention=True),
    )
    item = answer.data[0]
    console.print(f"{AGREEMENT}\n[cyan]{item.text}[/cyan]")
    if item.alignment:
        marks = "".join(token.strip()[:1] or " " for token in item.alignment.source_tokens)
        console.print(f"{'':>14} {marks}")
        for token, row in zip(item.alignment.target_tokens, item.alignment.weights, strict=True):
            console.print(f"{token.strip():>14} [cyan]{shades(row)}[/cyan]")
    console.print()


def show_captions(client: Client, *pictures: Path) -> None:
    """Prints captions by a Transformer and by the network of 2015."""
    names = ", ".join(picture.name for picture in pictures)
    for model in CAPTIONERS:
        answer = timed(
            f"POST /v1/caption  {names}  {model}",
            partial(client.caption, pictures, model=model),
        )
        for item in answer.data:
            console.print(f"[cyan]{item.text}[/cyan]")
        console.print()


def show_zero_shot(client: Client, picture: Path) -> None:
    """Classifies a picture among labels that differ from the true one in one word each."""
    answer = timed(
        f"POST /v1/zero-shot  {picture.name}, {len(LABELS)} labels",
        lambda: client.zero_shot(picture, labels=LABELS),
    )
    for entry in answer.data[0].labels or ():
        console.print(f"  {entry.score:6.1%}  [cyan]{entry.label}[/cyan]")
    console.print()


def show_embeddings(client: Client) -> None:
    """Embeds pictures and texts and prints their cosines."""
    paths = [PICTURES / name for name in CAPTIONS]
    images = timed(f"POST /v1/embed  {', '.join(CAPTIONS)}", lambda: client.embed(images=paths))
    texts = timed(f"POST /v1/embed  {len(CAPTIONS)} texts", lambda: client.embed(CAPTIONS.values()))
    for path, image in zip(paths, images.data, strict=True):
        cosines = (_dot(image.embedding or [], text.embedding or []) for text in texts.data)
        shown = "  ".join(f"{cosine:5.2f}" for cosine in cosines)
        console.print(f"  {path.name}  [cyan]{shown}[/cyan]")
    console.print()


def _dot(left: list[float], right: list[float]) -> float:
    return sum(a * b for a, b in zip(left, right, strict=True))


def show_examples(client: Client) -> None:
    """Sends few-shot examples of a code that occurs only in the prompt."""
    prompts = [word for word, _ in BINDINGS[:2]]
    answer = timed(
        f"POST /v1/generate  {len(BINDINGS)} examples",
        lambda: client.generate(
            prompts, instruction="Translate into the secret code.", examples=BINDINGS
        ),
    )
    shown = ", ".join(f"{word} => {code}" for word, code in BINDINGS)
    console.print(f"{shown};")
    for word, item in zip(prompts, answer.data, strict=True):
        console.print(f"{word} => [cyan]{item.text}[/cyan]")
    console.print()


def show_stream(client: Client) -> None:
    """Streams a sampled continuation and prints its chunks."""
    pieces = timed(
        "POST /v1/generate  stream",
        lambda: list(client.generate_stream("a small red", temperature=0.7, seed=4, stop="\n")),
    )
    console.print("a small red" + "|".join(f"[cyan]{piece.text}[/cyan]" for piece in pieces), "")


def show_chat(client: Client) -> None:
    """Prints conversations whose second answer needs the first turn, one of them in Spanish."""
    for system, *turns in CONVERSATIONS:
        messages = [{"role": "system", "content": system}] if system else []
        for said in turns:
            messages.append({"role": "user", "content": said})
            title = f"POST /v1/chat  {system}" if system else "POST /v1/chat"
            answer = timed(title, partial(client.chat, messages))
            text = str(answer.data[0].text)
            messages.append({"role": "assistant", "content": text})
            console.print(f"{said}\n[cyan]{text}[/cyan]")
        console.print()


def show_questions(client: Client, picture: Path) -> None:
    """Prints a conversation about a picture."""
    messages: list[dict[str, str]] = []
    for question in QUESTIONS:
        content = question if messages else f"<image>{question}"
        messages.append({"role": "user", "content": content})
        ask = partial(client.chat, messages, images=[picture], model="example-vqa")
        text = str(timed(f"POST /v1/chat  {picture.name}", ask).data[0].text)
        messages.append({"role": "assistant", "content": text})
        console.print(f"{question}\n[cyan]{text}[/cyan]")
    console.print()


if __name__ == "__main__":
    sys.exit(main())
