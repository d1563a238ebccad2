"""Rows and shards of bulk work: each row once, and its requests."""

from __future__ import annotations

import base64
import io
import json
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from inference.bundle.manifest import Role
from inference.errors import ServingError
from inference.tasks import classify, embed, segment
from inference.tasks.shared.loaded_model import LoadedModel, TaskLimits
from inference.tasks.shared.model_calls import Call, InferCall, Outcome
from serving.batch import shards
from serving.batch.places import Place
from serving.batch.rows import BATCHED, Row, RowReader, RowRequests
from serving.batch.shards import Input
from serving.local_model import LocalModel
from tests.inference import tiny_models
from tests.inference.tiny_models import segmenter, served
from tests.serving.batch.embedder import picture, write_table
from triptych.errors import InvalidArgument
from triptych.tasks.classify import Classes, ClassifyRequest
from triptych.tasks.embed import Embedding, EmbedRequest
from triptych.tasks.segment import Segmentation, SegmentRequest


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


def test_a_list_of_images_is_one_row(tmp_path: Path) -> None:
    first, second = picture(5), picture(6)
    (tmp_path / "one.png").write_bytes(first)
    text = base64.b64encode(second).decode()
    lines = [["one.png", text], ["one.png"], "one.png", [], ["one.png", 7], ["one.png", "no.png"]]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps({"it": one}) + "\n" for one in lines))
    found = rows(tmp_path / "in.jsonl", is_image=True)
    assert shown(found) == [
        (first, second),
        (first,),
        first,
        "it is an empty list: give an image at least",
        "it is int, not text",
        "the image cannot be read: No such file or directory",
    ]
    assert len({row.content_hash for row in found[:3]}) == 3
    pq.write_table(pa.table({"it": [[first, second], [second]]}), tmp_path / "in.parquet")
    assert shown(rows(tmp_path / "in.parquet", is_image=True)) == [(first, second), (second,)]


def test_frames_of_a_row_are_averaged_as_the_service_does(tmp_path: Path) -> None:
    """In one request with single images, more of them than rows in a request."""
    images = [_image(number) for number in range(6)]
    values = [tuple(images[:2]), images[2], tuple(images[3:] * 90)]
    rows: list[Any] = [Row("f", number, value, {}) for number, value in enumerate(values)]
    local = cast(LocalModel, _Local(served(tiny_models.two_towers())))
    items, _ = RowRequests(local, embed.TASK, EmbedRequest(images=[""]), "images", 0).answers(rows)
    flat = [*images[:3], *images[3:] * 90]
    request = EmbedRequest(images=[""] * len(flat), frame_counts=[2, 1, 270])
    model = replace(local.model, task_limits=TaskLimits(max_client_batch_size=300))
    plan = embed.TASK.prepare(request, flat, model)
    wanted = plan.finish([local.submit(call).result() for call in plan.calls]).data
    vectors = [cast(Embedding, item).embedding for item in items]
    np.testing.assert_array_equal(vectors, [item.embedding for item in wanted])
    assert len({tuple(np.round(vector, 6)) for vector in vectors}) > 1


def test_list_where_none_is_taken_is_the_error_of_its_row_alone() -> None:
    rows: list[Any] = [Row("f", 0, (_image(1), _image(2)), {}), Row("f", 1, _image(3), {})]
    local = cast(LocalModel, _Local())
    template = SegmentRequest(images=[""], labels=["a", "b", "c"])
    items, _ = RowRequests(local, segment.TASK, template, "images", 0).answers(rows)
    assert items[0].error is not None
    assert items[0].error.message == "segment takes an image a row, not a list of them"
    assert items[1].error is None
    towers = cast(LocalModel, _Local(served(tiny_models.two_towers())))
    plain = EmbedRequest(images=[""], normalize=False)
    items, _ = RowRequests(towers, embed.TASK, plain, "images", 0).answers(rows)
    assert items[0].error is not None
    assert "averages of frames have unit length" in items[0].error.message


class _Local:
    """Answers calls at once."""

    def __init__(self, model: LoadedModel | None = None) -> None:
        self.model = model or served(segmenter())
        self.calls: list[InferCall] = []

    def submit(self, call: Call) -> Future[Outcome]:
        assert isinstance(call, InferCall)
        self.calls.append(call)
        found: Future[Outcome] = Future()
        is_text = Role.EMBEDDING in call.outputs.values()
        vectors = {Role.EMBEDDING: np.eye(3, dtype=np.float32)[: call.rows]}
        if is_text and "pixels" in call.inputs:  # of images: their colours
            colours = call.inputs["pixels"].mean(axis=(1, 2), dtype=np.float32)
            vectors = {Role.EMBEDDING: colours + np.float32([1, 2, 3])}
        found.set_result(vectors if is_text else tiny_models.run(call))
        return found


def _image(red: int) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (6, 5), (red, 0, 0)).save(file, "PNG")
    return file.getvalue()


def test_masks_of_rows_are_made_of_labels_that_are_embedded_before() -> None:
    local = _Local()
    template = SegmentRequest(images=[""], labels=["a", "b", "c"])
    requests = RowRequests(cast(LocalModel, local), segment.TASK, template, "images", 0)
    rows: list[Any] = [Row("f", number, _image(2 * number), {}) for number in range(90)]
    items, usage = requests.answers(rows)
    assert all(isinstance(item, Segmentation) and item.masks for item in items)
    masks = [item.masks for item in items if isinstance(item, Segmentation)]
    assert [[mask.label for mask in found or ()] for found in masks] == [["a", "b", "c"]] * 90
    means = [found[0].mean_probability for found in masks if found]
    assert means == sorted(set(means))  # each image's own, in order
    images = [call.rows for call in local.calls if "pixels" in call.inputs]
    assert sum(images) == 90
    assert len(local.calls) - len(images) == 2  # requests of 85 rows and 5, planned before
    assert usage.prompt_tokens > 0


class _Locked(_Local):
    """Expects requests of one shard alone while it takes them."""

    requests: RowRequests

    def submit(self, call: Call) -> Future[Outcome]:
        assert self.requests._submitting.locked()
        return super().submit(call)


def _classified(count: int) -> tuple[_Local, list[Any]]:
    """Different texts of 1 to 10 words in a fixed disorder, and their items."""
    local = _Locked(served(tiny_models.text_classifier(activation="none")))
    template = ClassifyRequest(texts=["row"])
    local.requests = RowRequests(cast(LocalModel, local), classify.TASK, template, "texts", 0)
    texts = [f"{number:04}" + " word" * (7 * number % 10) for number in range(count)]
    rows: list[Any] = [Row("f", number, text, {}) for number, text in enumerate(texts)]
    items, _ = local.requests.answers(rows)
    return local, [(text, item) for text, item in zip(texts, items, strict=True)]


def test_rows_of_similar_length_share_requests_and_answers_keep_their_order() -> None:
    local, found = _classified(2 * BATCHED)
    for text, item in found:
        scores = {one.label: one.score for one in item.labels}
        assert scores["y"] == len(text.split()) + 1  # and the end token
    first = [int(call.inputs["lengths"].min()) for call in local.calls]
    rows = np.cumsum([call.rows for call in local.calls])
    assert min(first[: int(np.searchsorted(rows, BATCHED)) + 1]) == 6 + 1  # of the longer half


def test_rows_that_are_too_long_are_cut_and_say_so() -> None:
    local = _Local(served(tiny_models.text_classifier()))
    for fields in ({}, {"truncate": True, "truncation_direction": "left"}):
        template = ClassifyRequest(texts=[""], **fields)
        requests = RowRequests(cast(LocalModel, local), classify.TASK, template, "texts", 0)
        rows: list[Any] = [Row("f", n, "a " * count, {}) for n, count in enumerate((3, 30, 4))]
        items, _ = requests.answers(rows)
        found = cast(list[Classes], items)
        if fields:
            assert [item.error for item in found] == [None] * 3
            assert [item.truncated_characters for item in found] == [None, 37, None]
        else:
            assert [item.error is None for item in found] == [True, False, True]


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
    with (Place.of("memory://placed") / "deep").replacing("part") as part:
        part.write(b"whole")
    assert Place.of("memory://placed/deep/part").read() == b"whole"


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
