"""Files processed line by line, no line lost and none twice, and files of terms."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from triptych.commands.lines import LineProcessor, process_file
from triptych.errors import InvalidArgument, TriptychError, Unavailable
from triptych.glossaries.files import read_terms
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
@example(cut=len(EXPECTED), size=2)  # a finished file
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


TERMS = {"restaurante": "diner", "buena comida": 'the "good", food'}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", 'restaurante,diner\nbuena comida,"the ""good"", food"\n'),
        ("a.csv", '\ufeffrestaurante,diner\r\n\r\n"buena comida","the ""good"", food"\r\n'),
        ("a.CSV", 'restaurante,diner\n , \nbuena comida,"the ""good"", food"\nrestaurante,diner'),
        ("a.tsv", 'restaurante\tdiner\nbuena comida\tthe "good", food'),
        ("a.txt", '\ufeffrestaurante => diner\r\n\r\nbuena comida => the "good", food\r\n'),
        ("terms", 'restaurante\tdiner\n  buena comida =>  the "good", food \n'),
        ("a.json", '{"restaurante": "diner", "buena comida": "the \\"good\\", food"}'),
        (
            "a.json",
            '{"name": "a", "terms": {"restaurante": "diner",'
            ' "buena comida": "the \\"good\\", food"}, "source": "es"}',
        ),
    ],
)
def test_each_form(tmp_path: Path, name: str, content: str) -> None:
    file = tmp_path / name
    file.write_text(content, newline="")
    assert read_terms(file) == TERMS


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("a.csv", "a;b\n", "line 1: has 1 columns, not 2"),
        ("a.csv", "a,b\nc,d,e\n", "line 2: has 3 columns"),
        ("a.csv", 'a,"b\n', "line 1: unexpected end of data"),
        ("a.csv", "a,b\n,c\n", "line 2: the term or its rendering is blank"),
        ("a.csv", "a,b\na,c\n", "line 2: 'a' has two different renderings"),
        ("a.tsv", "a\tb\tc\n", "line 1: a line is"),
        ("a.txt", "a=b\n", "line 1: a line is"),
        ("a.txt", "a => \n", "line 1: the term or its rendering is blank"),
        ("a.json", "{", "is not JSON"),
        ("a.json", '["a"]', "is not an object of texts"),
        ("a.json", '{"a": 1}', "is not an object of texts"),
        ("a.json", '{"a": "b", "a": "c"}', "term 2: 'a' has two different renderings"),
        ("a.json", '{"a": {"b": "c"}}', "is not an object of texts"),
    ],
)
def test_problems_name_their_place(tmp_path: Path, name: str, content: str, problem: str) -> None:
    file = tmp_path / name
    file.write_text(content)
    with pytest.raises(InvalidArgument) as raised:
        read_terms(file)
    assert problem in str(raised.value)
    assert "\n" not in str(raised.value)


def test_other_encodings_are_named(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_bytes("a,ü".encode("latin-1"))
    with pytest.raises(InvalidArgument, match="is not UTF-8 text"):
        read_terms(file)
