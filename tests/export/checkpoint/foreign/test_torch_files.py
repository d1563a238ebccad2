"""Checkpoints of OpenNMT-py and fairseq: what they compute, and what is refused unread."""

from __future__ import annotations

import argparse
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import FSMTConfig, FSMTForConditionalGeneration, MBartForConditionalGeneration

from export.checkpoint.foreign.conversion import Conversion
from export.checkpoint.foreign.torch_files import load
from export.graphs.source_model import SourceModel
from inference.errors import CheckpointError
from tests.export.checkpoint.foreign.test_translators import Translator, check
from tests.export.checkpoint.foreign.write_files import FILES, texts
from tests.export.saved_folders import write_pieces
from tests.export.twins import bart, randomise

OPENNMT = ["<unk>", "<blank>", "<s>", "</s>", *texts({}, [])[4:]]
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]
TEXT, TARGET = ["w8", "w21", "w11"], ["w25", "w9", "w30", "w9"]


class Harmful:
    """Runs code when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return exec, ("raise SystemExit('code was run')",)


# -------------------------------------------------------------------------------- OpenNMT-py


@pytest.fixture
def opennmt(tmp_path: Path) -> Path:
    folder = tmp_path / "en-de"
    folder.mkdir()
    shutil.copy(FILES / "opennmt.pt", folder / "model.pt")
    write_pieces(folder / "sentencepiece.model")
    return folder


def edit(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    path = folder / "model.pt"
    with torch.serialization.safe_globals([argparse.Namespace]):
        values = torch.load(path)
    change(values)
    torch.save(values, path)


def refusal(folder: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        _ = SourceModel.open(folder).network
    return caught.value.message


def test_opennmt_translates_as_ctranslate2_does(opennmt: Path) -> None:
    check("opennmt", Translator(opennmt, OPENNMT, OPENNMT[:-3]))


def test_projections_without_biases_have_zeros(opennmt: Path) -> None:
    def remove(values: dict[str, Any]) -> None:
        for name in [name for name in values["model"] if name.endswith("_attn.linear_keys.bias")]:
            del values["model"][name]

    edit(opennmt, remove)
    network = SourceModel.open(opennmt).network
    assert not network.encoder.blocks[0].attention.key.bias.any()
    assert network.encoder.blocks[0].attention.query.bias.any()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"encoder_type": "rnn"}, "rnn"),
        ({"max_relative_positions": 20}, "max_relative_positions"),
        ({"pos_ffn_activation_fn": "silu"}, "silu"),
        ({"self_attn_type": "average"}, "average"),
    ],
)
def test_other_networks_are_refused_by_name(
    options: dict[str, Any], named: str, opennmt: Path
) -> None:
    edit(opennmt, lambda values: vars(values["opt"]).update(options))
    assert named in refusal(opennmt)


def test_tensors_of_another_network_are_named(opennmt: Path) -> None:
    edit(opennmt, lambda values: values["model"].update({"encoder.rnn.weight": torch.ones(1)}))
    assert "encoder.rnn.weight" in refusal(opennmt)
    edit(opennmt, lambda values: values["model"].pop("encoder.rnn.weight"))
    edit(opennmt, lambda values: values["model"].pop("decoder.layer_norm.weight"))
    assert "missing: model.decoder.layer_norm.weight" in refusal(opennmt)


def test_vocabularies_must_be_lists(opennmt: Path) -> None:
    edit(opennmt, lambda values: values.update(vocab={"src": [1, 2], "tgt": []}))
    assert "lists of tokens" in refusal(opennmt)


@pytest.mark.parametrize("is_archive", [True, False])
def test_no_code_is_run(is_archive: bool, opennmt: Path) -> None:
    path = opennmt / "model.pt"
    torch.save({"opt": Harmful()}, path, _use_new_zipfile_serialization=is_archive)
    assert "code" in refusal(opennmt)
    path.write_bytes(pickle.dumps(Harmful()))
    refusal(opennmt)


def test_tensors_larger_than_their_bytes_are_refused(opennmt: Path) -> None:
    """A view of one number may claim to be a terabyte."""
    huge = torch.ones(1).expand(1 << 38)
    edit(opennmt, lambda values: values["model"].update({"encoder.layer_norm.weight": huge}))
    assert "encoder.layer_norm.weight" in refusal(opennmt)


def test_damaged_files_are_refused(opennmt: Path) -> None:
    path = opennmt / "model.pt"
    content = path.read_bytes()
    for changed in (b"", content[:-40], content[: len(content) // 2], b"text" * 100):
        path.write_bytes(changed)
        assert "model.pt" in refusal(opennmt)
    torch.save([1, 2], path)
    assert "no dictionary" in refusal(opennmt)


def test_files_of_both_formats_of_torch_are_read(tmp_path: Path) -> None:
    for is_archive in (True, False):
        path = tmp_path / "m.pt"
        values = {"args": argparse.Namespace(a=1), "model": {"w": torch.ones(2)}}
        torch.save(values, path, _use_new_zipfile_serialization=is_archive)
        assert torch.equal(load(path)["model"]["w"], torch.ones(2))


# ----------------------------------------------------------------------------------- fairseq


def write_fairseq(folder: Path, reference: Any, tokens: list[int], **options: Any) -> None:
    """A checkpoint of fairseq's with the weights of a model of `transformers`.

    Args:
        tokens: Of source and target, special ones included.
    """
    state = {
        name.removeprefix("model."): tensor.clone()
        for name, tensor in reference.state_dict().items()
        if not name.endswith(("embed_positions.weight",)) or options.get("encoder_learned_pos")
    }
    for name in ("shared.weight", "final_logits_bias"):
        state.pop(name, None)
    if "lm_head.weight" in state:
        state["decoder.output_projection.weight"] = state.pop("lm_head.weight")
    state["encoder.version"] = torch.tensor([3.0])
    config = reference.config
    given = {
        "arch": "transformer",
        "source_lang": "es",
        "target_lang": "en",
        "encoder_attention_heads": config.encoder_attention_heads,
        "decoder_attention_heads": config.decoder_attention_heads,
        "activation_fn": config.activation_function,
        "no_scale_embedding": not config.scale_embedding,
    }
    folder.mkdir(exist_ok=True)
    torch.save({"args": argparse.Namespace(**given | options), "model": state}, folder / "model.pt")
    for code, count in zip(("es", "en"), tokens, strict=True):
        lines = [f"w{number} {count - number}" for number in range(len(SPECIAL), count)]
        (folder / f"dict.{code}.txt").write_text("\n".join(lines) + "\n")
    write_pieces(folder / "sentencepiece.bpe.model")


def compare(folder: Path, reference: Any, tokens: list[int]) -> None:
    """Asserts that our log-probabilities and greedy tokens are those of the reference."""
    sides = [[*SPECIAL, *(f"w{n}" for n in range(len(SPECIAL), count))] for count in tokens]
    ours = Translator(folder, *sides)
    source = torch.tensor([ours.read(TEXT)])
    wanted = [*map(sides[1].index, TARGET), 2]
    with torch.no_grad():
        given = torch.tensor([[2, *wanted[:-1]]])
        logits = reference(input_ids=source, decoder_input_ids=given, use_cache=False).logits[0]
        written = reference.generate(
            source, max_new_tokens=8, num_beams=1, do_sample=False, decoder_start_token_id=2,
            forced_eos_token_id=None, forced_bos_token_id=None, min_new_tokens=1,
            no_repeat_ngram_size=2,
        )[0].tolist()  # fmt: skip
    scores = logits.log_softmax(dim=-1)[torch.arange(len(wanted)), torch.tensor(wanted)]
    torch.testing.assert_close(ours.log_probs(TEXT, TARGET), scores, rtol=0, atol=1e-4)
    text = [sides[1][number] for number in written[1:] if number != 2]
    assert ours.translate(TEXT, 1)[0][: len(text)] == text
    assert ours.manifest.tasks["translate"]["languages"] == (("es", "en"),)


@pytest.fixture
def fsmt() -> Any:
    config = FSMTConfig(
        langs=["es", "en"], src_vocab_size=44, tgt_vocab_size=40, d_model=16, encoder_layers=1,
        decoder_layers=2, encoder_attention_heads=2, decoder_attention_heads=4, encoder_ffn_dim=20,
        decoder_ffn_dim=24, max_position_embeddings=24, activation_function="relu",
        tie_word_embeddings=False, scale_embedding=True,
    )  # fmt: skip
    model = FSMTForConditionalGeneration(config).eval()
    model.generation_config.max_length = None
    randomise(model)
    for stack in (model.model.encoder, model.model.decoder):
        stack.embed_positions.make_weight(27, config.d_model, config.pad_token_id)
    return model


def test_fairseq_with_norms_behind_computes_what_transformers_does(
    fsmt: Any, tmp_path: Path
) -> None:
    folder = tmp_path / "wmt"
    write_fairseq(folder, fsmt, [44, 40], max_source_positions=24, max_target_positions=20)
    compare(folder, fsmt, [44, 40])


def test_fairseq_with_norms_in_front_computes_what_transformers_does(tmp_path: Path) -> None:
    config = MBartForConditionalGeneration.config_class(**bart.MBART.configs["plain"])
    reference = MBartForConditionalGeneration(config).eval()
    randomise(reference)
    reference.final_logits_bias.zero_()
    options = {
        "encoder_normalize_before": True,
        "decoder_normalize_before": True,
        "layernorm_embedding": True,
        "encoder_learned_pos": True,
        "decoder_learned_pos": True,
    }
    folder, size = tmp_path / "mbart", config.vocab_size
    write_fairseq(folder, reference, [size, size], **options)
    compare(folder, reference, [size, size])


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"encoder_normalize_before": True}, "norms"),
        ({"activation_fn": "mish"}, "mish"),
        ({"no_token_positional_embeddings": True}, "no_token_positional_embeddings"),
        ({"encoder_langtok": "src"}, "encoder_langtok = 'src': models of many languages"),
        ({"langs": "ar_AR,en_XX"}, "langs = 'ar_AR,en_XX': models of many languages"),  # mBART
        ({"decoder_langtok": True, "lang_dict": "langs.txt"}, "decoder_langtok"),
        ({"target_lang": "../../etc"}, "dict.etc.txt"),
        ({"max_source_positions": 1 << 40}, "positions"),
        ({"target_lang": "x" * 300}, "xxx"),
        ({"encoder_normalize_before": torch.zeros(3)}, "Tensor"),
    ],
)
def test_other_networks_of_fairseq_are_refused_by_name(
    options: dict[str, Any], named: str, fsmt: Any, tmp_path: Path
) -> None:
    write_fairseq(tmp_path / "wmt", fsmt, [44, 40], **options)
    assert named in refusal(tmp_path / "wmt")


def test_tables_that_no_file_holds_are_bounded(tmp_path: Path) -> None:
    """A small file may state the size of a table of terabytes."""
    folder = tmp_path / "wide"
    folder.mkdir()
    options = {"source_lang": "es", "target_lang": "en", "max_source_positions": 1 << 16}
    tensors = {"encoder.layers.0.final_layer_norm.bias": torch.zeros(1 << 20)}
    torch.save({"args": argparse.Namespace(**options), "model": tensors}, folder / "model.pt")
    for code in ("es", "en"):
        (folder / f"dict.{code}.txt").write_text("w 1\n")
    assert "positions of 1048576 numbers" in refusal(folder)


def test_weights_far_larger_than_their_files_are_not_written(tmp_path: Path) -> None:
    """Many names may stand for the same numbers."""
    table = torch.zeros(1 << 20)
    tensors = [(f"w{number}", table) for number in range(6)]
    Conversion({}, {}, tensors).write(tmp_path, table.nbytes)
    with pytest.raises(CheckpointError, match="16 times"):
        Conversion({}, {}, tensors).write(tmp_path, 0)


def test_codes_of_subword_nmt_are_refused_by_name(fsmt: Any, tmp_path: Path) -> None:
    write_fairseq(tmp_path / "wmt", fsmt, [44, 40])
    (tmp_path / "wmt" / "sentencepiece.bpe.model").rename(tmp_path / "wmt" / "bpecodes")
    assert "subword-nmt" in refusal(tmp_path / "wmt")


def test_dictionaries_must_be_tokens_with_counts(fsmt: Any, tmp_path: Path) -> None:
    write_fairseq(tmp_path / "wmt", fsmt, [44, 40])
    (tmp_path / "wmt" / "dict.en.txt").write_text("a 3\nb\n")
    assert "'b'" in refusal(tmp_path / "wmt")
