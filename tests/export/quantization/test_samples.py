"""A user's samples for calibration: files, folders, and what is wrong with them."""

from __future__ import annotations

from pathlib import Path

import pytest

from export.quantization.samples import MOST, TextSample, read_samples, samples_hash
from inference.errors import SetupError


def _file(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_a_line_is_a_text_or_with_a_tab_a_pair(tmp_path: Path) -> None:
    path = _file(tmp_path, "texts.txt", "one text\n\nWho?\tAna.\n")
    samples = read_samples([path])
    assert samples.texts == (
        TextSample("texts.txt:1", "one text"),
        TextSample("texts.txt:3", "Who?", "Ana."),
    )
    assert (samples.images, samples.names, samples.found) == ((), ("texts.txt",), 2)


def test_json_lines_name_their_texts(tmp_path: Path) -> None:
    lines = '{"text": "a\\tb", "label": 3}\n{"first": "Who?", "second": "Ana."}\n'
    samples = read_samples([_file(tmp_path, "texts.jsonl", lines)])
    assert [(each.text, each.second) for each in samples.texts] == [
        ("a\tb", None),
        ("Who?", "Ana."),
    ]


def test_a_folder_holds_images_at_any_depth_and_texts(tmp_path: Path) -> None:
    (tmp_path / "inputs" / "cats").mkdir(parents=True)
    for name in ("b.JPG", "cats/a.png", ".hidden.png", "notes.md"):
        (tmp_path / "inputs" / name).write_bytes(b"")
    _file(tmp_path / "inputs", "labels.txt", "a cat\n")
    samples = read_samples([tmp_path / "inputs"])
    assert [path.name for path in samples.images] == ["b.JPG", "a.png"]
    assert [each.text for each in samples.texts] == ["a cat"]
    assert samples.names == ("inputs",)


def test_many_samples_are_thinned_evenly(tmp_path: Path) -> None:
    path = _file(tmp_path, "many.txt", "".join(f"{n}\n" for n in range(3 * MOST)))
    samples = read_samples([path])
    assert [each.text for each in samples.texts] == [str(n) for n in range(0, 3 * MOST, 3)]
    assert samples.found == 3 * MOST


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("empty.txt", b" \n\n", "the file is empty: give one text a line"),
        ("photo.raw", b"\xff\xfe\x00\xd8", "neither text in UTF-8 nor an image"),
        ("broken.jsonl", b'{"text": ', "broken.jsonl:1: not JSON"),
        ("other.jsonl", b'{"sentence": "x"}', 'expected {"text": '),
        ("number.jsonl", b'{"text": "x", "second": 3}', 'expected {"text": '),
    ],
)
def test_an_unusable_file_is_refused_by_its_name(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(SetupError, match="--calibration") as refused:
        read_samples([tmp_path / name])
    assert name in refused.value.message
    assert message in refused.value.message


def test_missing_paths_and_folders_without_samples_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="no such file or folder"):
        read_samples([tmp_path / "nothing.txt"])
    with pytest.raises(SetupError, match=r"has no images .* and no texts"):
        read_samples([tmp_path])


def test_hash_follows_the_contents_and_not_the_place(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    for folder in (one, other):
        folder.mkdir()
        _file(folder, "texts.txt", "a\n")
    before = samples_hash([one])
    assert samples_hash([other]) == before == samples_hash([one / "texts.txt"])
    _file(one, "texts.txt", "b\n")
    assert samples_hash([one]) != before
