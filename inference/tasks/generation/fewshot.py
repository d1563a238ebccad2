"""The few-shot layout of a prompt: instruction, solved examples, and the one to solve.

```
Translate English to French:

sea otter => loutre de mer
cheese =>
```

As in Brown et al. 2020 (arXiv 2005.14165, figure 2.1). No space follows the last `=>`: in
byte-level BPE it belongs to the answer, from which it is removed. A line break ends the answer.
Prompts with one header share a prefix, token for token, so the engine's prefix cache holds it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from inference.errors import InvalidRequest
from inference.tasks.shared.loaded_model import check_is_not_blank

SEPARATOR = " =>"
STOP = "\n"


def header(instruction: str | None, examples: Sequence[Any]) -> str:
    """The text before each prompt; empty without instruction and examples.

    Args:
        examples: Solved ones, each with `input` and `output`.

    Raises:
        InvalidRequest: an example is empty or has a line break.
    """
    parts = [f"{instruction.strip()}\n\n"] if instruction and instruction.strip() else []
    for index, example in enumerate(examples):
        question = _line(example.input, f"examples.{index}.input")
        answer = _line(example.output, f"examples.{index}.output")
        parts.append(f"{question}{SEPARATOR} {answer}{STOP}")
    return "".join(parts)


def before(instruction: str | None) -> str:
    """The words in front of a prompt that an encoder reads; empty without an instruction."""
    return f"{instruction.strip()} " if instruction and instruction.strip() else ""


def laid_out(header: str, prompt: str, field: str) -> str:
    """A prompt below its header, ready to be continued.

    Raises:
        InvalidRequest: it is empty or has a line break.
    """
    return f"{header}{_line(prompt, field)}{SEPARATOR}"


def _line(text: str, field: str) -> str:
    check_is_not_blank(text, field)
    line = text.strip()
    if len(line.splitlines()) > 1:
        raise InvalidRequest(
            f"{field} has a line break, which ends an example: keep it to one line, "
            "or lay out the prompt yourself, without instruction and examples",
            field=field,
        )
    return line
