"""Few-shot episodes: an instruction, examples of one rule, and a prompt to answer by the same rule.

The rules form families. A *fresh* family draws new bindings for each episode, so the answer can
only be read from the examples; the bindings of the other families are the same in every episode.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from random import Random

from examples.texts.bindings import (
    CITY_NAMES,
    COLOUR_NAMES,
    FIRST_NAMES,
    KIND_OF,
    NEXT,
    NUMBER_NAMES,
    OPPOSITES,
    PLURALS,
    SPANISH,
    Binding,
    Split,
    assigned,
    coined,
    grouped,
    repeated,
)

Draw = Callable[[Random, Split, int], tuple[Binding, ...]]
"""(random, split, number of bindings) → the bindings of one episode."""

BOUND = 4  # words, or groups: 2, that a scored episode binds
_LONGEST_LESSON = 14  # lines
_INSTRUCTED_SHARE = 0.75


@dataclass(frozen=True)
class Family:
    """A family of rules.

    Attributes:
        instructions: Wordings of the instruction; one is drawn for each episode.
        weight: Relative frequency in training.
        is_lookup: The prompt is one of the bound words; otherwise a word that is in no example.
        bound: Number of bindings in a scored episode; None where the mapping is fixed.
    """

    name: str
    instructions: tuple[str, ...]
    draw: Draw
    weight: float
    is_lookup: bool = False
    bound: int | None = None

    def is_answerable(self, line: Binding, above: tuple[Binding, ...]) -> bool:
        """Whether the answer follows from the lines above or from a fixed mapping."""
        if self.is_lookup:
            return line in above
        return self not in FRESH or line.answer in {each.answer for each in above}


@dataclass(frozen=True)
class Question:
    """A few-shot prompt and the expected answer."""

    instruction: str
    examples: tuple[Binding, ...]
    prompt: str
    answer: str

    @property
    def text(self) -> str:
        """The model's prompt; the answer follows, after a space."""
        lines = "".join(f"{one.given} => {one.answer}\n" for one in self.examples)
        return f"{header(self.instruction)}{lines}{self.prompt} =>"


def header(instruction: str) -> str:
    """An instruction and an empty line, or nothing."""
    return f"{instruction}\n\n" if instruction else ""


def _known(table: tuple[Binding, ...]) -> Draw:
    return lambda rng, _split, _count: tuple(rng.sample(table, len(table)))


def _assigned(answers: tuple[str, ...]) -> Draw:
    return lambda rng, split, count: assigned(rng, split, answers, count)


def _lookup(name: str, instructions: tuple[str, ...], draw: Draw, weight: float) -> Family:
    return Family(name, instructions, draw, weight, is_lookup=True, bound=BOUND)


FRESH = (
    _lookup("colours", ("Say its colour.", "Which colour?"), _assigned(COLOUR_NAMES), 1.0),
    _lookup("numbers", ("Say its number.", "Which number?"), _assigned(NUMBER_NAMES), 1.0),
    _lookup("owners", ("Say whose it is.", "Who has it?"), _assigned(FIRST_NAMES), 1.0),
    _lookup("cities", ("Say where it is.", "Which city?"), _assigned(CITY_NAMES), 1.0),
    _lookup("code words", ("Give the code word.", "Translate into the secret code."), coined, 4.0),
    Family("groups", ("Name the group.", "Sort the words."), grouped, 3.0, bound=2),
)
COPYING = (
    Family("repeat", ("Say it again.",), partial(repeated, is_swapped=False), 1.0, bound=1),
    Family("swap", ("Swap the words.",), partial(repeated, is_swapped=True), 1.0, bound=1),
)
KNOWN = (
    Family("plural", ("Give the plural.", "More than one."), _known(PLURALS), 0.6),
    Family("Spanish", ("Translate into Spanish.", "Say it in Spanish."), _known(SPANISH), 1.2),
    Family("opposite", ("Give the opposite.",), _known(OPPOSITES), 0.6),
    Family("next", ("What comes next?", "Name the next one."), _known(NEXT), 0.6),
    Family("kind", ("Name the kind.", "What kind is it?"), _known(KIND_OF), 0.6),
)
FAMILIES = (*FRESH, *COPYING, *KNOWN)


@dataclass(frozen=True)
class Lesson:
    """A training episode: every line is a question whose context is the lines above it.

    Attributes:
        answerable: For each line, whether its answer follows from the lines above or from a fixed
            mapping.
    """

    instruction: str
    lines: tuple[Binding, ...]
    answerable: tuple[bool, ...]

    def pieces(self) -> Iterator[str]:
        """The text in pieces, every other one an answer; tokens never span two pieces.

        GPT-2's tokenizer joins nothing across a newline or the space before a word.
        """
        before = header(self.instruction)
        for line in self.lines:
            yield f"{before}{line.given} =>"
            yield f" {line.answer}\n"
            before = ""


def lessons(seed: int, families: Sequence[Family] = FAMILIES) -> Iterator[Lesson]:
    """Endless training episodes, the same ones for the same arguments."""
    rng = Random(f"lessons {seed}")
    weights = [family.weight for family in families]
    while True:
        (family,) = rng.choices(families, weights)
        bound = rng.randint(2, 4) if family.name == "groups" else rng.randint(2, 6)
        is_copying = family in COPYING
        pool = family.draw(rng, "train", _LONGEST_LESSON if is_copying else bound)
        # Independent draws: drawing without replacement would hint at the remaining words.
        lines = any_of(rng, pool) if family.is_lookup else iter(rng.sample(pool, len(pool)))
        shown = tuple(islice(lines, rng.randint(4, _LONGEST_LESSON)))
        is_instructed = rng.random() < _INSTRUCTED_SHARE
        yield Lesson(
            rng.choice(family.instructions) if is_instructed else "",
            shown,
            tuple(family.is_answerable(line, shown[:index]) for index, line in enumerate(shown)),
        )


def questions(
    family: Family, shots: int, count: int, seed: int, split: Split = "held_out"
) -> Iterator[Question]:
    """Yields `count` questions of `shots` examples each, the same ones for the same arguments.

    Where words are looked up, `BOUND` of them are bound, the examples go through them in turn and
    the prompt is any of them: one example contains the answer in a quarter of the questions.
    """
    rng = Random(f"questions {family.name} {split} {seed}")
    for _ in range(count):
        pool = family.draw(rng, split, family.bound or BOUND)
        if family in COPYING:
            pool = family.draw(rng, split, shots + 1)
        order = passes(rng, pool)
        examples = tuple(next(order) for _ in range(shots))
        unseen = [binding for binding in pool if binding not in examples]
        queried = rng.choice(pool if family.is_lookup else unseen)
        yield Question(rng.choice(family.instructions), examples, queried.given, queried.answer)


def any_of(rng: Random, pool: tuple[Binding, ...]) -> Iterator[Binding]:
    """Endless independent draws."""
    while True:
        yield rng.choice(pool)


def passes(rng: Random, pool: tuple[Binding, ...]) -> Iterator[Binding]:
    """Endless passes over all of them, each in a new random order."""
    while True:
        yield from rng.sample(pool, len(pool))
