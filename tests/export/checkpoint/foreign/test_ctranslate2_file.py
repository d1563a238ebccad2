"""`model.bin`: integers become the floats they stand for, and damage is one line."""

from __future__ import annotations

import random
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from export.checkpoint.checkpoint import open_checkpoint
from export.checkpoint.foreign.ctranslate2_file import Variables
from export.graphs.source_model import SourceModel
from inference.errors import CheckpointError
from tests.export.checkpoint.foreign.write_files import FILES
from tests.export.saved_folders import write_pieces

KINDS = ("float32", "int8", "int16", "int32", "float16", "bfloat16")


def text(value: str) -> bytes:
    return struct.pack("<H", len(value) + 1) + value.encode() + b"\0"


def variable(name: str, shape: tuple[int, ...], kind: str, content: bytes) -> bytes:
    head = struct.pack(f"<B{len(shape)}I", len(shape), *shape)
    return text(name) + head + struct.pack("<BI", KINDS.index(kind), len(content)) + content


def file_of(*variables: bytes, aliases: tuple[tuple[str, str], ...] = ()) -> bytes:
    head = struct.pack("<I", 6) + text("TransformerSpec") + struct.pack("<I", 7)
    names = b"".join(text(one) + text(other) for one, other in aliases)
    body = struct.pack("<I", len(variables)) + b"".join(variables)
    return head + body + struct.pack("<I", len(aliases)) + names


def written(path: Path, content: bytes) -> Variables:
    path.write_bytes(content)
    return Variables(path)


def test_quantised_rows_are_divided_by_their_scales(tmp_path: Path) -> None:
    values = np.array([[-127, 5, 0], [3, 127, 1]], np.int8)
    scales = np.array([2.5, 300], np.float32)
    found = written(
        tmp_path / "model.bin",
        file_of(
            variable("a/weight", (2, 3), "int8", values.tobytes()),
            variable("a/weight_scale", (2,), "float32", scales.tobytes()),
            aliases=(("b/weight", "a/weight"),),
        ),
    )
    for name in ("a/weight", "b/weight"):  # an alias has the scale of its variable
        want = values.astype(np.float32) / scales[:, None]
        assert torch.equal(found.tensor(name), torch.from_numpy(want))
    assert found.unused() == []


def test_16_bit_integers_have_one_scale(tmp_path: Path) -> None:
    values = np.array([[-1024, 7]], np.int16)
    scale = variable("w_scale", (), "float32", np.float32(51.2).tobytes())
    table = variable("w", (1, 2), "int16", values.tobytes())
    want = torch.from_numpy(values.astype(np.float32) / np.float32(51.2))
    assert torch.equal(written(tmp_path / "model.bin", file_of(table, scale)).tensor("w"), want)
    old = written(tmp_path / "model.bin", file_of(table))  # of files that store none
    assert torch.equal(old.tensor("w"), torch.tensor([[-1.024, 0.007]]))


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16])
def test_16_bit_floats_stay_as_they_are(kind: torch.dtype, tmp_path: Path) -> None:
    values = torch.randn(3, 2).to(kind)
    content = values.view(torch.int16).numpy().tobytes()
    name = str(kind).removeprefix("torch.")
    found = written(tmp_path / "model.bin", file_of(variable("w", (3, 2), name, content)))
    assert torch.equal(found.tensor("w"), values)


@pytest.mark.parametrize("version", [2, 3])
def test_older_versions_have_sizes_in_place_of_types(version: int, tmp_path: Path) -> None:
    values = {
        "a": np.arange(6, dtype=np.float32).reshape(2, 3),
        "b": np.array([[5, -3]], np.int16),
        "c": np.array([[9], [-7]], np.int8),
        "c_scale": np.array([2, 4], np.float32),
    }
    body = b"".join(
        text(name)
        + struct.pack(f"<B{each.ndim}I", each.ndim, *each.shape)
        + struct.pack("<BI", each.itemsize, each.size)
        + each.tobytes()
        for name, each in values.items()
    )
    head = struct.pack("<I", version) + text("TransformerBase") + struct.pack("<I", 2)
    aliases = struct.pack("<I", 1) + text("d") + text("c") if version == 3 else b""
    found = written(tmp_path / "model.bin", head + struct.pack("<I", 4) + body + aliases)
    assert (found.spec, found.revision) == ("TransformerBase", 2)
    assert torch.equal(found.tensor("a"), torch.from_numpy(values["a"]))
    assert torch.equal(found.tensor("b"), torch.tensor([[0.005, -0.003]]))
    for name in ("c", "d")[: version - 1]:
        assert torch.equal(found.tensor(name), torch.tensor([[4.5], [-1.75]]))


ONE = variable("w", (2,), "float32", bytes(8))
DAMAGED: dict[str, bytes] = {
    "empty": b"",
    "another format": b"PK\x03\x04" + bytes(60),
    "a newer version": struct.pack("<I", 7) + file_of(ONE)[4:],
    "truncated": file_of(ONE)[:-6],
    "four billion variables": file_of()[:-8] + struct.pack("<I", 2**32 - 1),
    "four billion aliases": file_of(ONE)[:-4] + struct.pack("<I", 2**32 - 1),
    "a huge shape": file_of(variable("w", (2**32 - 1,) * 4, "float32", bytes(8))),
    "too many dimensions": file_of(variable("w", (1,) * 9, "float32", bytes(4))),
    "a name twice": file_of(ONE, ONE),
    "fewer bytes than the shape": file_of(variable("w", (3,), "float32", bytes(8))),
    "a name that is no text": file_of(ONE).replace(text("w"), text("w")[:2] + b"\xff\xff"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_files_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"model\.bin") as caught:
        written(tmp_path / "model.bin", DAMAGED[name])
    assert "\n" not in caught.value.message


@pytest.mark.parametrize("scale", [None, np.float32(0), np.float32("nan"), np.ones(3, np.float32)])
def test_integers_need_scales_that_fit(scale: np.ndarray | None, tmp_path: Path) -> None:
    tables = [variable("w", (2, 1), "int8", bytes(2))]
    if scale is not None:
        tables.append(variable("w_scale", np.shape(scale), "float32", scale.tobytes()))
    found = written(tmp_path / "model.bin", file_of(*tables))
    with pytest.raises(CheckpointError, match="scale"):
        found.tensor("w")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    copied = tmp_path / "en-de"
    shutil.copytree(FILES / "marian", copied)
    write_pieces(copied / "sentencepiece.model")
    return copied


def refusal(folder: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        _ = SourceModel.open(folder).network
    return caught.value.message


def test_flipped_bytes_are_refused_or_read(folder: Path) -> None:
    """No byte of a file leads to another error."""
    content = (folder / "model.bin").read_bytes()
    draw = random.Random(0)
    refused = 0
    for _ in range(60):
        changed = bytearray(content)
        changed[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
        (folder / "model.bin").write_bytes(changed[: draw.choice([len(content), None])])
        try:
            _ = SourceModel.open(folder).network
        except CheckpointError:
            refused += 1
    assert refused > 0


def _renamed(old: str, new: str) -> Callable[[bytes], bytes]:
    assert len(old) == len(new)
    return lambda content: content.replace(old.encode(), new.encode())


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (_renamed("TransformerSpec", "WhisperSpecific"), "WhisperSpecific"),
        (_renamed("decoder/alibi", "decoder/rotar"), "decoder/rotar"),
        (
            _renamed("decoder/layer_1/ffn/linear_0", "decoder/layer_1/ffn/linear_9"),
            "decoder/layer_1",
        ),
        (_renamed("encoder/layer_0/self_attention/linear_0/bias", "x" * 44), "xxx"),
    ],
)
def test_other_networks_are_refused_by_name(
    change: Callable[[bytes], bytes], named: str, folder: Path
) -> None:
    path = folder / "model.bin"
    path.write_bytes(change(path.read_bytes()))
    assert named in refusal(folder)


def test_vocabulary_must_fit_the_table(folder: Path) -> None:
    (folder / "shared_vocabulary.json").write_text('["</s>", "<unk>"]')
    assert "2 tokens" in refusal(folder)
    (folder / "shared_vocabulary.json").write_text('{"</s>": 0}')
    assert "list of tokens" in refusal(folder)
    (folder / "shared_vocabulary.json").write_text("[" * 100_000)
    assert "damaged" in refusal(folder)
    (folder / "shared_vocabulary.json").unlink()
    (folder / "vocabulary.json").write_text("[]")
    assert "source_vocabulary.json" in refusal(folder)


def test_missing_tokenizer_is_named(folder: Path) -> None:
    (folder / "sentencepiece.model").unlink()
    assert "source.spm" in refusal(folder)


def test_temporary_folder_is_removed_with_the_checkpoint(folder: Path) -> None:
    checkpoint = open_checkpoint(str(folder))
    place = checkpoint.folder.parent
    assert checkpoint.has("config.json")
    assert checkpoint.location == str(folder)
    assert checkpoint.name == "en-de"
    assert checkpoint.content_hash == open_checkpoint(str(folder)).content_hash
    del checkpoint
    assert not place.exists()
