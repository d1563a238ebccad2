"""Files of terms as people have them."""

from __future__ import annotations

from pathlib import Path

import pytest

from triptych.errors import InvalidArgument
from triptych.glossaries.files import read_terms

EXPECTED = {"restaurante": "diner", "buena comida": 'the "good", food'}


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
    assert read_terms(file) == EXPECTED


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
