"""Items as lines for people; the task of an item may declare its own (`Command.render`)."""

from __future__ import annotations

from collections.abc import Iterator

from triptych.messages import Item


def text_lines(item: Item, name: str | None) -> Iterator[str]:
    """The text of an item, and its alternatives below it; an item without text as JSON.

    Args:
        item: Result without an error.
        name: Written before the text, e.g. a file name; None where there is a single input.
    """
    prefix = f"{name}\t" if name else ""
    text = getattr(item, "text", None)
    yield f"{prefix}{item_json(item) if text is None else text}"
    for alternative in getattr(item, "alternatives", None) or ():
        score = "" if alternative.score is None else f"{alternative.score:8.4f}"
        yield f"  {score:>8}  {alternative.text}"


def separator(item: Item, name: str | None) -> Iterator[str]:
    """What stands above an item of several lines: its name, else a blank line between items."""
    if name is not None:
        yield name
    elif item.index:
        yield ""


def item_line(item: Item) -> str:
    """An item on one line: its text without line breaks, or JSON where it has none."""
    text = getattr(item, "text", None)
    return item_json(item) if text is None else " ".join(text.splitlines())


def item_json(item: Item) -> str:
    """An item as JSON on one line, without its position."""
    return item.model_dump_json(exclude_none=True, exclude={"index"})
