"""A file processed line by line: no line lost, none twice, whenever it is interrupted."""

from collections.abc import Callable
from itertools import chain
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triptych.commands.lines import LineProcessor, process_file
from triptych.errors import InvalidArgument, TriptychError, Unavailable
from triptych.messages import ItemError
from triptych.tasks.translate import TranslateResponse, Translation


class Translator:
    """Upper-cases; fails from the call `fails_at` on; refuses the line "bad"."""

    def __init__(self, fails_at: int | None = None) -> None:
        self.fails_at = fails_at
        self.sent: list[list[str]] = []

    def __call__(self, texts: list[str]) -> TranslateResponse:
        if len(self.sent) == self.fails_at:
            raise Unavailable("gone", status=503, type="unavailable")
        self.sent.append(texts)
        items = [
            Translation(index=i, error=ItemError(type="too_long", message="too long"))
            if text == "bad"
            else Translation(index=i, text=text.upper(), score=-1.0)
            for i, text in enumerate(texts)
        ]
        return TranslateResponse(model="m", data=items)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "in.txt"
    path.write_bytes(b"a\n\nb\r\n   \nc\nd\n\n")
    return path


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "out.txt"


EXPECTED = "A\n\nB\n\nC\nD\n\n"


def run(translator: Translator, source: Path, target: Path, size: int = 2) -> LineProcessor:
    processor = LineProcessor(translator, size)
    process_file(processor, source, target)
    return processor


def test_line_i_belongs_to_line_i_and_blank_lines_are_not_sent(source: Path, target: Path) -> None:
    translator = Translator()
    run(translator, source, target, size=3)
    assert target.read_text() == EXPECTED
    assert translator.sent == [["a", "b"], ["c", "d"]]


def test_a_last_line_without_its_break_is_a_line(source: Path, target: Path) -> None:
    source.write_text("a\nb")
    run(Translator(), source, target)
    assert target.read_text() == "A\nB\n"


def test_only_newlines_break_lines(source: Path, target: Path) -> None:
    source.write_text("a\u2028b\x0cc\n", encoding="utf-8")
    translator = Translator()
    run(translator, source, target)
    assert translator.sent == [["a\u2028b\x0cc"]]
    assert target.read_bytes().count(b"\n") == 1


def test_outage_keeps_whole_batches_and_the_next_run_continues(source: Path, target: Path) -> None:
    with pytest.raises(Unavailable):
        run(Translator(fails_at=1), source, target)
    assert target.read_text() == "A\n\n"
    translator = Translator()
    run(translator, source, target)
    assert target.read_text() == EXPECTED
    assert ["a"] not in translator.sent


@given(cut=st.integers(min_value=0, max_value=len(EXPECTED)), size=st.integers(1, 9))
def test_a_crash_at_any_byte_loses_and_doubles_nothing(
    tmp_path_factory: pytest.TempPathFactory, cut: int, size: int
) -> None:
    folder = tmp_path_factory.mktemp("crash")
    source, target = folder / "in.txt", folder / "out.txt"
    source.write_text("a\n\nb\n   \nc\nd\n\n")
    target.write_text(EXPECTED[:cut])
    translator = Translator()
    run(translator, source, target, size)
    assert target.read_text() == EXPECTED
    whole = EXPECTED[:cut].count("\n")
    left = [line for line in source.read_text().split("\n")[whole:] if line.strip()]
    assert list(chain.from_iterable(translator.sent)) == left


def test_finished_file_sends_nothing(source: Path, target: Path) -> None:
    run(Translator(), source, target)
    translator = Translator()
    run(translator, source, target)
    assert translator.sent == []
    assert target.read_text() == EXPECTED


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (EXPECTED + "E\n", "more lines"),
        (EXPECTED + "torn", "more lines"),
        ("A\nX\n", "line 2 is blank"),
    ],
)
def test_an_output_of_another_input_is_refused_and_left_alone(
    source: Path, target: Path, content: str, reason: str
) -> None:
    target.write_text(content)
    translator = Translator()
    with pytest.raises(InvalidArgument, match=reason):
        run(translator, source, target)
    assert target.read_text() == content
    assert translator.sent == []


@pytest.mark.parametrize("spell", [lambda path: path, lambda path: path.parent / "." / path.name])
def test_the_input_is_never_the_output(source: Path, spell: Callable[[Path], Path]) -> None:
    before = source.read_bytes()
    with pytest.raises(InvalidArgument, match="both input and output"):
        run(Translator(), source, spell(source))
    assert source.read_bytes() == before


def test_a_refused_line_ends_it_by_number(source: Path, target: Path) -> None:
    source.write_text("a\n\nbad\nb\n")
    with pytest.raises(TriptychError, match="line 3: too long"):
        run(Translator(), source, target)
    assert target.read_text() == "A\n\n"


def test_keep_going_leaves_a_refused_line_blank(source: Path, target: Path) -> None:
    source.write_text("a\n\nbad\nb\n")
    processor = LineProcessor(Translator(), 2, keep_going=True)
    process_file(processor, source, target)
    assert target.read_text() == "A\n\n\nB\n"
    assert processor.failed == [(3, "too long")]


def test_line_that_is_not_utf8_is_named(source: Path, target: Path) -> None:
    source.write_bytes(b"a\n\xff\n")
    with pytest.raises(InvalidArgument, match="line 2 of the input is not UTF-8"):
        run(Translator(), source, target, size=1)
    assert target.read_text() == "A\n"


def test_a_translation_with_line_breaks_stays_one_line(source: Path, target: Path) -> None:
    def send(texts: list[str]) -> TranslateResponse:
        items = [Translation(index=i, text="x\ny", score=0.0) for i, _ in enumerate(texts)]
        return TranslateResponse(model="m", data=items)

    source.write_text("a\n")
    process_file(LineProcessor(send, 4), source, target)
    assert target.read_text() == "x y\n"


def test_json_lines_hold_the_score(source: Path, target: Path) -> None:
    source.write_text("a\n\n")
    process_file(LineProcessor(Translator(), 4, as_json=True), source, target)
    assert target.read_text() == '{"text":"A","score":-1.0}\n\n'
