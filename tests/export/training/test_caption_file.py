"""The forms of a captions' file, and what is said about lines that are not of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from export.training.caption_file import Caption, find_captions, read_captions
from inference.errors import SetupError

FORMS = {
    "captions.txt": "\ufeffa.png\tone  picture\r\n\nb c.png\t two,\twith a tab\n",
    "captions.TSV": "a.png\tone picture\n\nb c.png\ttwo, with a tab",
    "metadata.csv": '\nfile_name,text\na.png,one picture\n\nb c.png,"two,\nwith a tab"\n'.lstrip(),
    "of.csv": 'caption, image\none picture,a.png\n\n"two, with a tab", b c.png\n',
    "captions.jsonl": '{"image": "a.png", "caption": "one picture"}\n\n'
    '{"text": "two, with a tab", "file_name": "b c.png", "other": 1}\n',
}


@pytest.mark.parametrize(("name", "text"), FORMS.items(), ids=list(FORMS))
def test_each_form_is_read(tmp_path: Path, name: str, text: str) -> None:
    file = tmp_path / name
    file.write_text(text, encoding="utf-8", newline="")
    expected = [Caption(1, "a.png", "one picture"), Caption(3, "b c.png", "two, with a tab")]
    if name.endswith(".csv"):  # behind the header
        expected = [each._replace(line=each.line + 1) for each in expected]
    assert read_captions(file) == expected


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("a.txt", "a.png\tone\nb.png two\n", "a.txt: line 2 has no tab$"),
        ("a.txt", "a.png\t \n\tone\n", "line 1 has an empty caption; line 2 names no picture$"),
        ("a.txt", "a.png\n" * 9, "line 5 has no tab; and 4 more$"),
        ("a.txt", "", "a.txt has no captions$"),
        ("a.csv", "", r"line 1 must have the columns file_name and text or .*, not \[\]"),
        ("a.csv", "a.png,one\n", "line 1 must have the columns"),
        ("a.csv", "image,caption\na.png\n", "line 2 has 1 fields and the header 2$"),
        ("a.csv", 'image,caption\na,"b\nc"\na.png,one, two\n', "line 4 has 3 fields and the"),
        ("a.csv", 'image,caption\na,"b" c\n', "line 2 is not CSV"),
        ("a.jsonl", '{"image": "a"}\n[]\n', "line 1 lacks the keys.*line 2 lacks the keys"),
        ("a.jsonl", '{"image": "a", "caption": 1}\n', "line 1 lacks the keys"),
        ("a.jsonl", "{\n", "line 1 is not JSON"),
        ("a.xml", "", "a.xml has another suffix than .txt, .tsv, .csv, .jsonl$"),
        ("a.txt", None, "a.txt does not exist$"),
        ("a.txt", b"a\tb\n\xff\tc", "a.txt is not UTF-8: line 2"),
    ],
)
def test_bad_lines_are_numbered(
    tmp_path: Path, name: str, text: str | bytes | None, reason: str
) -> None:
    file = tmp_path / name
    if text is not None:
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(SetupError, match=reason):
        read_captions(file)


def test_captions_are_found_in_the_folder(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"has none of .*: give one with --captions"):
        find_captions(tmp_path)
    (tmp_path / "metadata.csv").write_text("")
    assert find_captions(tmp_path) == tmp_path / "metadata.csv"
    (tmp_path / "captions.txt").write_text("")
    with pytest.raises(SetupError, match="has several of"):
        find_captions(tmp_path)
    with pytest.raises(SetupError, match="nothing is not a folder"):
        find_captions(tmp_path / "nothing")
