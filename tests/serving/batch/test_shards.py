"""Shards have each row of their input once, in order."""

from __future__ import annotations

from pathlib import Path

import fsspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.batch import shards
from serving.batch.places import Place
from serving.batch.rows import Row, RowReader
from serving.batch.shards import Input
from tests.serving.batch.embedder import picture, write_table
from triptych.errors import InvalidArgument

lines = st.lists(st.sampled_from(["", "a", "bb", "ñ  ", "ccc" * 9]), max_size=40)


def rows_of(source: Input, size: int, column: str = "image", **given: object) -> list[Row]:
    reader = RowReader(source, column, (), bool(given.get("is_image", True)))
    found = []
    for number, shard in enumerate(source.shards(size)):
        assert shard.number == number
        rows = reader.rows(shard)
        assert len(rows) == shard.rows <= size
        found += rows
    return found


@given(lines, st.integers(1, 9), st.integers(1, 64), st.booleans())
def test_lines_are_divided_at_their_ends(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], size: int, block: int, ends: bool
) -> None:
    file = tmp_path_factory.mktemp("lines") / "in.txt"
    content = "\n".join(texts) + ("\n" if ends and texts else "")
    file.write_text(content, encoding="utf-8")
    wanted = content.removesuffix("\n").split("\n") if content else []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shards, "_SCAN_BYTES", block)
        found = rows_of(Input.at(str(file)), size, is_image=False)
    assert [row.value for row in found] == wanted
    assert [row.number for row in found] == list(range(len(wanted)))


@pytest.mark.parametrize("size", [1, 4, 7, 50])
def test_shards_of_tables_cross_row_groups(tmp_path: Path, size: int) -> None:
    pictures = [picture(number) for number in range(23)]
    write_table(tmp_path / "in.parquet", pictures, group_rows=6)
    assert [row.value for row in rows_of(Input.at(str(tmp_path)), size)] == pictures


@pytest.mark.parametrize(("most", "unit"), [(512, 64), (500, 62), (70, 35), (9, 9)])
def test_shards_are_smaller_towards_the_end(tmp_path: Path, most: int, unit: int) -> None:
    counts = (300, 20_000)
    for name, count in zip("ab", counts, strict=True):
        (tmp_path / f"{name}.txt").write_text("".join(f"{row}\n" for row in range(count)))
    source = Input.at(str(tmp_path))
    found = [row.value for row in rows_of(source, most, is_image=False)]
    assert found == [str(row) for count in counts for row in range(count)]
    sizes = [shard.rows for shard in source.shards(most) if shard.first_file == 1]
    assert sizes == sorted(sizes, reverse=True)
    assert (sizes[0], sizes[-2]) == (most // unit * unit, unit)


def test_files_of_a_folder_are_in_the_order_of_their_paths(tmp_path: Path) -> None:
    for name in ("b/2.png", "b/10.png", "a.jpg", ".hidden.png", "_SUCCESS", "notes.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(name.encode())
    found = rows_of(Input.at(str(tmp_path)), 2)
    assert [row.file for row in found] == ["a.jpg", "b/10.png", "b/2.png"]
    assert [row.value for row in found] == [b"a.jpg", b"b/10.png", b"b/2.png"]
    assert len({row.content_hash for row in found}) == 3


def test_an_input_is_read_through_fsspec() -> None:
    with fsspec.open("memory://folder/in.txt", "wb") as file:
        file.write(b"one\ntwo\n")
    found = rows_of(Input.at("memory://folder"), 1, is_image=False)
    assert [(row.file, row.value) for row in found] == [("in.txt", "one"), ("in.txt", "two")]
    with (Place.of("memory://out") / "deep").replacing("part") as part:
        part.write(b"whole")
    assert Place.of("memory://out/deep/part").read() == b"whole"


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ([], "no format"),
        (["a.txt", "b.parquet"], "parquet, text: give --input-format"),
        (["a.tar"], "no format"),
    ],
)
def test_an_input_of_no_format_or_of_several_is_refused(
    tmp_path: Path, names: list[str], message: str
) -> None:
    for name in names:
        (tmp_path / name).write_text("")
    with pytest.raises(InvalidArgument, match=message):
        Input.at(str(tmp_path))


def test_what_is_missing_or_unreadable_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"there is no .*nowhere"):
        Input.at(str(tmp_path / "nowhere"))
    (tmp_path / "in.parquet").write_text("no table")
    with pytest.raises(InvalidArgument, match=r"cannot read in\.parquet"):
        Input.at(str(tmp_path)).shards(4)
    with pytest.raises(InvalidArgument, match="cannot open nothing://a"):
        Input.at("nothing://a")
