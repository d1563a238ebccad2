"""The demo's calls to encoders: classes, masked words, tags, documents, answers, paraphrases."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

from rich.console import Console
from rich.markup import escape

from triptych import Client

PICTURES = Path(__file__).parent / "pictures"
LABELS = [
    "large blue heart",
    "large red heart",
    "large red star",
    "large red striped heart",
    "small red heart",
]
CAPTIONS = {
    "scene-1.png": "a small yellow checked square above a small white checked cross",
    "scene-3.png": "a large yellow checked crescent above a small purple checked diamond",
    "scene-4.png": "a large red heart",
}
CAPTIONERS = ("example-captioner", "example-show-attend-tell")
AGREEMENT = "The agreement on the European Economic Area was signed in August 1992."
BINDINGS = [("dovfen", "murgav"), ("jodsax", "jodtek"), ("pofgip", "fimmig"), ("sovgav", "gimjem")]
CONVERSATIONS = (
    ("", "My name is Torsten. My car is red.", "What color is my car?"),
    ("Answer in Spanish.", "I live in London.", "Where do I live?"),
)
"""A system message, or none, and what the user says."""
QUESTIONS = ("What colour is the upper shape?", "Which texture has the cross?")
"""About `scene-1.png`, one after the other."""


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


REVIEWS = [
    "The food was not bad at all.",
    "Although the hotel was clean, nobody would call the soup delicious.",
    "Do you think that this movie is interesting?",
]
MASKED = "My sister [MASK] a teacher."
EVENT = "Last Friday, Kugfen sold a big lamp in Sovsub."
QUERY = "Who sold the old lamp in Paris last Friday?"
DOCUMENTS = [
    "Pedro bought the old lamp in London yesterday.",
    "Last Friday, the old lamp was sold in Paris by Ana.",
    "Last Friday, Elena washed two shirts in Rome.",
]
ASKED = [
    "Where was the suitcase found by Pedro last Monday?",
    "When did Elena cut the bread in Madrid?",
]
PASSAGE = (
    "It was Laura who found the suitcase in Paris last Saturday. "
    "Last Monday, the suitcase was found in Kugfen by Pedro."
)
PARAPHRASES = [
    "Ana visited Pedro in Rome yesterday.",
    "Yesterday, Pedro was visited by Ana in Rome.",
    "Yesterday, Ana called Elena in Rome.",
]


def show_encoders(client: Client, picture: Path) -> None:
    """Calls each route of encoders once."""
    show_text_classes(client)
    show_image_classes(client, picture)
    show_masked_words(client)
    show_tags(client)
    show_ranking(client)
    show_answers(client)
    show_paraphrases(client)


def show_text_classes(client: Client) -> None:
    """Prints the sentiment of reviews whose words alone do not decide it."""
    answer = timed(
        f"POST /v1/classify  {len(REVIEWS)} texts", partial(client.classify, REVIEWS, top_k=1)
    )
    for text, item in zip(REVIEWS, answer.data, strict=True):
        for entry in item.labels or ():
            console.print(f"  {entry.score:6.1%}  [cyan]{entry.label:<9}[/cyan] {text}")
    console.print()


def show_image_classes(client: Client, picture: Path) -> None:
    """Prints the classes of a picture's largest thing and where the network attends."""
    answer = timed(
        f"POST /v1/classify  {picture.name}  return_attention",
        lambda: client.classify(images=picture, top_k=2, return_attention=True),
    )
    (item,) = answer.data
    for entry in item.labels or ():
        console.print(f"  {entry.score:6.1%}  [cyan]{entry.label}[/cyan]")
    rows = item.attention or []
    highest = max((weight for row in rows for weight in row), default=1.0)
    for row in rows:
        doubled = [weight / highest for weight in row for _ in range(2)]
        console.print(f"  [cyan]{shades(doubled)}[/cyan]")
    console.print()


def show_masked_words(client: Client) -> None:
    """Prints the most likely words for a mask."""
    answer = timed("POST /v1/fill-mask", lambda: client.fill_mask(MASKED, top_k=3))
    console.print(escape(MASKED))
    for mask in answer.data[0].masks or ():
        shown = "  ".join(f"{entry.score:5.1%} [cyan]{entry.token}[/cyan]" for entry in mask)
        console.print(f"  {shown}")
    console.print()


def show_tags(client: Client) -> None:
    """Prints the roles in a sentence with made-up names."""
    answer = timed("POST /v1/tag", lambda: client.tag(EVENT, aggregation="simple"))
    console.print(EVENT)
    shown = "  ".join(f"[cyan]{token.text}[/cyan] {token.label}" for token in answer.data[0].tokens)
    console.print(f"  {shown}\n")


def show_ranking(client: Client) -> None:
    """Ranks sentences that share words with a question by whether they answer it."""
    answer = timed(
        f"POST /v1/rerank  {len(DOCUMENTS)} documents",
        lambda: client.rerank(QUERY, DOCUMENTS, return_documents=True),
    )
    console.print(QUERY)
    for entry in answer.data[0].results or ():
        console.print(f"  {entry.score or 0:6.1%}  [cyan]{entry.text}[/cyan]")
    console.print()


def show_answers(client: Client) -> None:
    """Finds the answer to a question in a passage, and that another one has none there."""
    answer = timed(
        f"POST /v1/answer  {len(ASKED)} questions",
        lambda: client.answer(ASKED, [PASSAGE], null_threshold=0.0),
    )
    console.print(PASSAGE)
    for text, item in zip(ASKED, answer.data, strict=True):
        for entry in item.answers or ():
            console.print(f"  {entry.score:6.1%}  {text} [cyan]{entry.text or 'no answer'}[/cyan]")
    console.print()


def show_paraphrases(client: Client) -> None:
    """Embeds a sentence, its paraphrase and a similar one, and prints the cosines."""
    answer = timed(
        f"POST /v1/embed  {len(PARAPHRASES)} texts  example-bert-embed",
        lambda: client.embed(PARAPHRASES, model="example-bert-embed"),
    )
    first, *others = (item.embedding or [] for item in answer.data)
    console.print(PARAPHRASES[0])
    for text, vector in zip(PARAPHRASES[1:], others, strict=True):
        cosine = sum(a * b for a, b in zip(first, vector, strict=True))
        console.print(f"  {cosine:5.2f}  [cyan]{text}[/cyan]")
    console.print()
