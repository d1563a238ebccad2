"""A row that holds nothing for the task says why, and leaves the others alone."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from inference.errors import ServingError
from serving.batch.rows import Row, RowReader
from serving.batch.shards import Input
from tests.serving.batch.embedder import picture


def rows(file: Path, *, is_image: bool, keep: tuple[str, ...] = ()) -> list[Row]:
    source = Input.at(str(file))
    reader = RowReader(source, "it", keep, is_image)
    return [row for shard in source.shards(3) for row in reader.rows(shard)]


def shown(found: list[Row]) -> list[object]:
    return [str(row.value) if isinstance(row.value, ServingError) else row.value for row in found]


def test_lines_that_are_no_rows_have_errors(tmp_path: Path) -> None:
    file = tmp_path / "in.jsonl"
    lines = [
        b'{"it": "text", "id": 7}', b"{", b"[1]", b"", b'{"id": 8}', b'{"it": 4, "id": [9]}',
        b'{"it": "\xff"}', b'{"it": "\\ud800"}', b'{"it": "last"}\r',
    ]  # fmt: skip
    file.write_bytes(b"\n".join(lines) + b"\n")
    found = rows(file, is_image=False, keep=("id",))
    assert shown(found) == [
        "text",
        *["the line is not a JSON object"] * 3,
        "the row has no it",
        "it is int, not text",
        "the line is not UTF-8 text",
        "it is not valid Unicode text",
        "last",
    ]
    assert [row.kept["id"] for row in found] == [7, None, None, None, 8, [9], None, None, None]
    assert [row.content_hash is None for row in found] == [False, *[True] * 7, False]


def test_images_are_bytes_base64_or_paths_beside_the_file(tmp_path: Path) -> None:
    image = picture(5)
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "one.png").write_bytes(image)
    text = base64.b64encode(image).decode()
    values = [
        "deep/one.png", str(tmp_path / "deep/one.png"), text, f"data:image/png;base64,{text}",
        "missing.png", "http://127.0.0.1/a.png", "A" * 41,
    ]  # fmt: skip
    (tmp_path / "in.jsonl").write_text("".join(json.dumps({"it": one}) + "\n" for one in values))
    found = shown(rows(tmp_path / "in.jsonl", is_image=True))
    assert found[:4] == [image] * 4
    assert found[4] == "the image cannot be read: No such file or directory"
    assert "not fetched" in str(found[5])
    assert "not base64" in str(found[6])


def test_images_of_datasets_are_bytes_or_paths(tmp_path: Path) -> None:
    image = picture(5)
    (tmp_path / "one.png").write_bytes(image)
    stored = [{"bytes": image, "path": None}, {"bytes": None, "path": "one.png"}, None]
    pq.write_table(pa.table({"it": stored}), tmp_path / "in.parquet")
    found = shown(rows(tmp_path / "in.parquet", is_image=True))
    assert found == [image, image, "the row has no it"]
