"""Marian's `.npz` computes what CTranslate2 computes of it, and damage is one line."""

from __future__ import annotations

import io
import shutil
import struct
import zipfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from export.checkpoint.checkpoint import open_checkpoint
from export.checkpoint.foreign.marian_npz import _read_tokens
from export.graphs.source_model import SourceModel
from inference.errors import CheckpointError
from tests.export.checkpoint.foreign.test_translators import Translator, check
from tests.export.checkpoint.foreign.write_files import FILES, MARIAN_OPTIONS, marian_arrays, texts
from tests.export.saved_folders import write_pieces

TOKENS = texts({"</s>": 0, "<unk>": 1}, [])[:-1]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = tmp_path / "opus-es-en"
    shutil.copytree(FILES / "opus", found)
    for name in ("source.spm", "target.spm"):
        write_pieces(found / name)
    return found


def write(folder: Path, arrays: dict[str, Any], **options: Any) -> None:
    text = yaml.safe_dump(MARIAN_OPTIONS | options).encode() + b"\0"
    np.savez(folder / "model.npz", **arrays, **{"special:model.yml": np.frombuffer(text, np.int8)})


def refusal(folder: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        _ = SourceModel.open(folder).network
    assert "\n  " in caught.value.message or "\n" not in caught.value.message
    return caught.value.message


def test_it_translates_as_ctranslate2_does(folder: Path) -> None:
    translator = Translator(folder, TOKENS, TOKENS)
    check("opus", translator)
    assert translator.manifest.tasks["translate"]["languages"] == (("es", "en"),)
    assert translator.rules.num_beams == 6
    assert translator.rules.bad_words_ids == ((len(TOKENS),),)


def test_norms_in_front_and_two_tables_are_read(folder: Path) -> None:
    arrays = {name.replace("_ln_scale", "_ln_scale_pre").replace("_ln_bias", "_ln_bias_pre"): each
              for name, each in marian_arrays().items()}  # fmt: skip
    table = arrays.pop("Wemb")
    arrays |= {"encoder_Wemb": table, "decoder_Wemb": 2 * table}
    for name in ("encoder_top", "decoder_top"):
        arrays |= {f"{name}_ln_{leaf}": np.ones((1, table.shape[1])) for leaf in ("scale", "bias")}
    write(
        folder, arrays,
        **{"transformer-preprocess": "n", "transformer-postprocess": "da"},
        **{"transformer-postprocess-top": "n"},
    )  # fmt: skip
    network = SourceModel.open(folder).network
    assert network.encoder.blocks[0].is_norm_first
    ours = network.decoder.embedding.tokens.weight[:-1]
    assert torch.equal(ours, torch.from_numpy(2 * table))
    assert torch.equal(network.decoder.output[:-1], ours)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"type": "amun"}, "amun"),
        ({"transformer-decoder-autoreg": "rnn"}, "rnn"),
        ({"transformer-preprocess": "n"}, "transformer-postprocess"),
        ({"transformer-ffn-activation": "tanh"}, "tanh"),
        ({"transformer-tied-layers": [1, 1]}, "transformer-tied-layers"),
        ({"enc-depth": 2}, "encoder_l2_self_Wq"),
        ({"dec-depth": 0}, "decoder_l1"),
    ],
)
def test_other_networks_are_refused_by_name(
    options: dict[str, Any], named: str, folder: Path
) -> None:
    write(folder, marian_arrays(), **options)
    assert named in refusal(folder)


def test_folder_in_two_formats_is_hugging_face_s(folder: Path) -> None:
    (folder / "config.json").write_text('{"model_type": "marian"}')
    assert open_checkpoint(str(folder)).folder == folder


def test_8_bit_models_are_refused_by_name(folder: Path, tmp_path: Path) -> None:
    (folder / "model.intgemm.alphas.bin").write_bytes(b"")
    (folder / "decoder.yml").write_text("models: [model.intgemm.alphas.bin]\nvocabs: [a.spm]\n")
    assert "Bergamot" in refusal(folder)
    (folder / "decoder.yml").unlink()
    assert "Bergamot" in refusal(folder)  # Firefox' folders have none


@pytest.mark.parametrize("name", ["source.spm", "opus.vocab.yml", "model.npz"])
def test_missing_files_are_named(name: str, folder: Path) -> None:
    (folder / name).unlink()
    assert name in refusal(folder)


def test_damaged_files_are_refused(folder: Path) -> None:
    path = folder / "model.npz"
    content = path.read_bytes()
    for changed in (b"", content[:-40], content[: len(content) // 2], b"text" * 100):
        path.write_bytes(changed)
        assert "model.npz" in refusal(folder)
    path.write_bytes(content)
    (folder / "decoder.yml").write_text("models: [\n")
    assert "decoder.yml" in refusal(folder)
    decoder = folder / "decoder.yml"
    for text in ("- model.npz\n", "models: 3\n", "models: [2020-99-99]\n"):
        decoder.write_text(text)
        assert str(folder) in refusal(folder) or "decoder.yml" in refusal(folder)


@pytest.mark.parametrize(
    ("name", "content"),
    [("opus.vocab.yml", rb'"\x": 0'), ("opus.vocab.yml", b"\xff: 0"), ("source.spm", b"text" * 9)],
)
def test_damaged_vocabularies_are_refused(name: str, content: bytes, folder: Path) -> None:
    (folder / "decoder.yml").write_text(f"models: [model.npz]\nvocabs: [{name}]\n")
    (folder / name).write_bytes(content)
    assert str(folder) in refusal(folder)


def test_archive_whose_files_lie_before_it_is_refused(folder: Path) -> None:
    content = bytearray((folder / "model.npz").read_bytes())
    (start,) = struct.unpack_from("<I", content, len(content) - 6)  # of its directory
    struct.pack_into("<I", content, len(content) - 6, 2 * start)
    (folder / "model.npz").write_bytes(content)
    assert len(refusal(folder)) < 500


def test_references_of_yaml_fill_no_memory(folder: Path) -> None:
    """A few lines may stand for ten billion values."""
    levels = "abcdefghij"
    lists = "".join(
        f"{one}: &{one} [{', '.join([f'*{before}'] * 10)}]\n" for before, one in pairwise(levels)
    )
    merged = "".join(
        f"{one}: &{one} {{<<: [{', '.join([f'*{before}'] * 10)}]}}\n"
        for before, one in pairwise(levels)
    )
    bomb = "a: &a [0]\n" + lists + "type: *j\n"
    text = np.frombuffer(bomb.encode() + b"\0", np.int8)
    np.savez(folder / "model.npz", **marian_arrays(), **{"special:model.yml": text})
    assert len(refusal(folder)) < 500
    (folder / "decoder.yml").write_text("a: &a {x: 0}\n" + merged)
    assert "decoder.yml" in refusal(folder)


def test_arrays_larger_than_their_bytes_and_objects_are_refused(folder: Path) -> None:
    file = io.BytesIO()
    header = {"descr": "<f4", "fortran_order": False, "shape": (2**31, 2**31)}
    np.lib.format.write_array_header_1_0(file, header)
    pickled = io.BytesIO()
    np.save(pickled, np.array([object()], dtype=object), allow_pickle=True)
    for content in (file.getvalue(), pickled.getvalue(), b"", b"no array at all"):
        write(folder, {name: each for name, each in marian_arrays().items() if name != "Wemb"})
        with zipfile.ZipFile(folder / "model.npz", "a") as archive:
            archive.writestr("Wemb.npy", content)
        assert "Wemb" in refusal(folder) or "model.npz" in refusal(folder)


def test_bombs_are_refused(folder: Path) -> None:
    with zipfile.ZipFile(folder / "model.npz", "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("more.npy", bytes(64 << 20))
    assert "unpacks to over" in refusal(folder)


def test_vocabulary_has_the_tokens_that_marian_reads(tmp_path: Path) -> None:
    path = tmp_path / "vocab.yml"
    lines = ['"</s>": 0', "<unk>: 1", "'it''s': 2", '"\\"": 3', '? "▁long"', ": 4", '":": 5']
    path.write_text("\n".join([*lines, "a: 6", '"\\x85": 7', "▁b\u2028: 8"]) + "\n")
    want = ["</s>", "<unk>", "it's", '"', "▁long", ":", "a", "\x85", "▁b\u2028"]
    assert _read_tokens(path) == want
    path.write_text("a: 0\nb: 2\n")
    with pytest.raises(CheckpointError, match="ids"):
        _read_tokens(path)
    path.write_text("a\n")
    with pytest.raises(CheckpointError, match="no token"):
        _read_tokens(path)
