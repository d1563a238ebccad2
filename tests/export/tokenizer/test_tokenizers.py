"""Tokenizers of single families against those of `transformers`."""

from __future__ import annotations

import io
import json
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import sentencepiece
import transformers
from tokenizers import Tokenizer
from transformers import AddedToken, AutoTokenizer, PerceiverTokenizer
from transformers.models.auto.tokenization_auto import (
    TOKENIZER_MAPPING_NAMES,
    tokenizer_class_from_name,
)

from export.checkpoint.checkpoint import Checkpoint, open_checkpoint
from export.parity.parity_inputs import Probe, stateless_feeds
from export.tokenizer.special_token_templates import Framing
from export.tokenizer.tokenizer import fast_tokenizer, mask_token
from export.tokenizer.tokenizer_json import FAST_FILE, SETTINGS
from inference.bundle.inputs import TokenizerSpec
from inference.errors import CheckpointError
from inference.processing.tokenizer_kinds import FastTokenizer
from inference.tasks.shared.length_buckets import Padding
from tests.export.checkpoint.text_folders import NASTY, SENTENCES
from tests.export.conftest import example_bundle
from tests.export.tokenizer.tiny_tokenizers import CORPUS, write_json
from tests.export.twins import make_twin

SPECIAL = ("[PAD]", "[BOS]", "[EOS]", "[MASK]", "[CLS]", "[SEP]")


def exported(folder: Path) -> tuple[TokenizerSpec, FastTokenizer]:
    """The tokenizer of a bundle that was exported from a folder with these settings."""
    if not (folder / "config.json").exists():
        write_json(folder / "config.json", {"model_type": "perceiver"})
    spec, contents = fast_tokenizer(open_checkpoint(str(folder)))
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    return spec, FastTokenizer(spec, folder)


def random_text(rng: Random) -> str:
    """Characters of one to four bytes, and special tokens between them."""
    ranges = (1, 0x80), (0x80, 0x800), (0x800, 0xD800), (0xE000, 0x110000)
    signs = [chr(rng.randrange(*between)) for between in ranges]
    return "".join(rng.choices([*signs, " ", "[", *SPECIAL, "[MASK"], k=rng.randrange(12)))


def assert_equal(oracle: Any, ours: FastTokenizer, texts: list[str]) -> None:
    for text in texts:
        ids = oracle(text)["input_ids"]
        assert ours.encode(text) == ids, text
        plain = oracle(text, add_special_tokens=False)["input_ids"]
        assert ours.encode(text, add_special_tokens=False) == plain, text
        for cut in (ids, plain, plain[1:], plain[:-1]):  # in the middle of characters, too
            assert ours.decode(cut) == oracle.decode(cut, skip_special_tokens=True), text
            assert ours.render(cut, skip_special_tokens=False) == oracle.decode(cut), text


def test_ids_and_texts_equal_those_of_transformers(tmp_path: Path) -> None:
    oracle = PerceiverTokenizer()
    oracle.save_pretrained(tmp_path)
    spec, ours = exported(tmp_path)
    rng = Random(0)
    assert_equal(oracle, ours, [*CORPUS, *(random_text(rng) for _ in range(500))])
    assert (spec.pad_token_id, spec.bos_token_id, spec.eos_token_id) == (0, 1, 2)
    assert mask_token(open_checkpoint(str(tmp_path))) == ("[MASK]", 3)


def test_pairs_equal_those_of_transformers(tmp_path: Path) -> None:
    oracle = PerceiverTokenizer()
    _, ours = exported(tmp_path)
    for first, second in zip(CORPUS, reversed(CORPUS), strict=True):
        want = oracle([(first, second)], return_token_type_ids=True)
        got = ours.encode_text(first, second)
        assert list(got.ids) == want["input_ids"][0], (first, second)
        assert list(got.segments) == want["token_type_ids"][0], (first, second)


def test_any_bytes_are_decoded_as_by_transformers(tmp_path: Path) -> None:
    oracle = PerceiverTokenizer()
    _, ours = exported(tmp_path)
    rng = Random(1)
    for _ in range(3000):
        ids = rng.choices(range(6, 262), k=3) + rng.choices(range(134, 262), k=4)
        rng.shuffle(ids)
        assert ours.decode(ids) == oracle.decode(ids, skip_special_tokens=True), ids


def test_spaces_are_cleaned_up_where_the_settings_say_so(tmp_path: Path) -> None:
    oracle = PerceiverTokenizer(clean_up_tokenization_spaces=True)
    oracle.save_pretrained(tmp_path)
    _, ours = exported(tmp_path)
    assert ours.decode(ours.encode("it 's fine .")) == "it's fine."
    assert_equal(oracle, ours, ["it 's fine . I 'm , we 're !"])


def test_offsets_are_those_of_the_characters(tmp_path: Path) -> None:
    _, ours = exported(tmp_path)
    offsets = ours.encode_text("aé[MASK]", with_offsets=True).offsets
    assert [tuple(each) for each in offsets[1:-1]] == [(0, 1), (1, 2), (1, 2), (2, 8)]


def test_other_and_further_tokens_are_those_of_the_folder(tmp_path: Path) -> None:
    oracle = PerceiverTokenizer(mask_token="<m>", cls_token=AddedToken("<c>", special=True))
    oracle.add_tokens(["<one>"])
    oracle.add_special_tokens({"additional_special_tokens": ["<two>"]})
    oracle.save_pretrained(tmp_path)
    again = PerceiverTokenizer.from_pretrained(tmp_path)
    _, ours = exported(tmp_path)
    assert again("<one>").input_ids == [4, 262, 5]
    assert_equal(again, ours, ["a<m>b <c><one>x<two>", "[MASK] <one"])
    assert mask_token(open_checkpoint(str(tmp_path))) == ("<m>", 3)


def test_added_tokens_with_a_gap_are_refused(tmp_path: Path) -> None:
    settings = {
        "tokenizer_class": "PerceiverTokenizer",
        "added_tokens_decoder": {"270": {"content": "<far>"}},
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    with pytest.raises(CheckpointError, match=r"start at 262"):
        exported(tmp_path)


TEXTS = [
    *NASTY,
    "",
    " ",
    "  two in front",
    "- punctuation in front",
    "two behind  ",
    "ΟΔΟΣ ΣΑΣ Σ",
    "İstanbul, Straße",
    "a\x1cb\x1fc\u2028d\x85e\u3000f",
    "ﬁn… “quoted” ½",
    "▁under▁score_d",
    "a - b",
    "foo </s> bar",
    "w" * 30,
    "\u200b x",
    "it's 5% off! 🙂",
    "a\x00b",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SigLIP with pieces and settings, and no `tokenizer.json`."""
    made = tmp_path_factory.mktemp("siglip")
    make_twin("siglip", "odd", made)
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([text.lower() for text in SENTENCES] * 4),
        model_writer=model,
        vocab_size=150,
        hard_vocab_limit=False,
        pad_id=0,
        eos_id=1,
        unk_id=2,
        bos_id=-1,
        minloglevel=2,
    )
    (made / "spiece.model").write_bytes(model.getvalue())
    theirs(made).save_pretrained(made)
    return made


def theirs(folder: Path, **settings: Any) -> Any:
    return transformers.SiglipTokenizer(str(folder / "spiece.model"), **settings)


def ours(checkpoint: Checkpoint, folder: Path) -> FastTokenizer:
    spec, files = fast_tokenizer(checkpoint)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return FastTokenizer(spec, folder)


@pytest.mark.parametrize("is_lower_case", [True, False])
def test_ids_are_those_of_transformers(folder: Path, tmp_path: Path, is_lower_case: bool) -> None:
    checkpoint = copied(folder, tmp_path, {"do_lower_case": is_lower_case})
    tokenizer = ours(checkpoint, tmp_path)
    reference = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert type(reference) is transformers.SiglipTokenizer
    assert {text: tokenizer.encode(text) for text in TEXTS} == {
        text: reference(text).input_ids for text in TEXTS
    }


def test_texts_are_padded_with_the_end_token(folder: Path) -> None:
    spec, _ = fast_tokenizer(open_checkpoint(str(folder)))
    assert (spec.kind, spec.pad_token_id, spec.eos_token_id, spec.unk_token_id) == (
        "tokenizers", 1, 1, 2,
    )  # fmt: skip


def test_pieces_win_over_a_file_that_transformers_does_not_read(
    folder: Path, tmp_path: Path
) -> None:
    checkpoint = copied(folder, tmp_path, {})
    Tokenizer.from_str('{"version": "1.0", "model": {"type": "WordLevel", "vocab": {"a": 0}, '
                       '"unk_token": "a"}}').save(str(tmp_path / FAST_FILE))  # fmt: skip
    (number, *_) = ours(checkpoint, tmp_path).encode("red")
    assert number == theirs(folder)("red").input_ids[0]


def test_class_is_that_of_the_model_where_the_settings_have_none(
    folder: Path, tmp_path: Path
) -> None:
    checkpoint = copied(folder, tmp_path, {"tokenizer_class": None})
    assert ours(checkpoint, tmp_path).encode("Red!") == theirs(folder)("Red!").input_ids


def test_damaged_pieces_are_refused(folder: Path, tmp_path: Path) -> None:
    checkpoint = copied(folder, tmp_path, {})
    (tmp_path / "spiece.model").write_bytes(b"no pieces")
    with pytest.raises(CheckpointError, match=r"spiece\.model is damaged"):
        fast_tokenizer(checkpoint)


def copied(folder: Path, into: Path, changes: dict[str, Any]) -> Checkpoint:
    """The folder with other settings."""
    for file in folder.iterdir():
        (into / file.name).write_bytes(file.read_bytes())
    settings = json.loads((folder / SETTINGS).read_text()) | changes
    (into / SETTINGS).write_text(json.dumps(settings))
    return open_checkpoint(str(into))


def _special(folder: Path) -> dict[str, int]:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return {name: tokenizer.token_to_id(f"[{name}]") for name in ("CLS", "SEP", "MASK")}


def test_texts_begin_and_end_with_the_special_tokens(tmp_path: Path) -> None:
    bundle = example_bundle("example-bert-sentiment", tmp_path)
    framing, special = Framing.of(bundle), _special(tmp_path)
    graph = bundle.manifest.graphs["text"]
    feeds = stateless_feeds(graph, bundle.manifest, Probe(300, 300, framing=framing), 5, 2)
    tokens, lengths = feeds["token_ids"], feeds["lengths"]
    assert lengths.min() == 3  # one token between [CLS] and [SEP]
    assert (tokens[:, 0] == special["CLS"]).all()
    assert (tokens[np.arange(5), lengths - 1] == special["SEP"]).all()
    assert not feeds["segments"].any()


def test_a_reranker_reads_pairs_with_their_segments(tmp_path: Path) -> None:
    bundle = example_bundle("example-bert-rerank", tmp_path)
    framing, special = Framing.of(bundle), _special(tmp_path)
    graph = bundle.manifest.graphs["text"]
    feeds = stateless_feeds(graph, bundle.manifest, Probe(300, 300, framing=framing), 1, 11)
    tokens, segments = feeds["token_ids"][0], feeds["segments"][0]
    assert segments.tolist() == [0] * 6 + [1] * 5
    assert tokens[[0, 5, 10]].tolist() == [special["CLS"], special["SEP"], special["SEP"]]


def test_scored_positions_hold_the_mask(tmp_path: Path) -> None:
    bundle = example_bundle("example-bert", tmp_path)
    graph, special = bundle.manifest.graphs["text"], _special(tmp_path)
    probe = Probe(300, 300, framing=Framing.of(bundle))
    feeds = stateless_feeds(graph, bundle.manifest, probe, 3, 9)
    at = np.take_along_axis(feeds["token_ids"], feeds["positions"], axis=1)
    assert (at == special["MASK"]).all()
    assert (feeds["positions"] >= 1).all()
    assert (feeds["positions"] < feeds["lengths"][:, None] - 1).all()


def test_a_framed_text_has_the_ids_that_the_tokenizer_gives(tmp_path: Path) -> None:
    bundle = example_bundle("example-bert-rerank", tmp_path)
    framing, spec = Framing.of(bundle), bundle.manifest.tokenizer
    assert spec is not None
    pair = FastTokenizer(spec, tmp_path).encode_text("Ana", "Pedro sings")
    content = [index for index, of in zip(pair.ids, pair.sequences, strict=True) if of is not None]
    first = sum(sequence == 0 for sequence in pair.sequences)
    drawn = np.array(content + [7] * (len(pair) - len(content)))
    ids, segments = framing.classified.filled(drawn)
    if 2 * first in (len(content), len(content) + 1):  # split in the middle
        assert (ids.tolist(), segments.tolist()) == (list(pair.ids), list(pair.segments))
    assert len(ids) == len(segments) == len(pair)


def test_images_and_bundles_without_pairs_have_no_framing(tmp_path: Path) -> None:
    assert Framing.of(example_bundle("example-vit", tmp_path)) is None


WORDS = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "<s>", "</s>", "<0x00>", "▁", "a", "b"]
VOCABULARY = {word: number for number, word in enumerate(WORDS)}
WIDTH = 8


def folder_of(name: str, folder: Path, **settings: Any) -> Path:
    """A tokenizer of that class, whose settings leave out what `settings` does not say."""
    getattr(transformers, name)(vocab=VOCABULARY, merges=[]).save_pretrained(folder)
    path = folder / "tokenizer_config.json"
    saved = json.loads(path.read_text())
    saved.pop("padding_side", None)
    path.write_text(json.dumps(saved | {"pad_token": "<pad>"} | settings))
    (folder / "config.json").write_text(json.dumps({"model_type": "siglip"}))
    return folder


@pytest.mark.parametrize("settings", [{}, {"padding_side": "right"}, {"padding_side": "left"}])
@pytest.mark.parametrize("name", ["Siglip2Tokenizer", "GemmaTokenizer", "GPT2Tokenizer"])
def test_padding_is_where_the_automatic_tokenizer_puts_it(
    name: str, settings: dict[str, str], tmp_path: Path
) -> None:
    folder = folder_of(name, tmp_path, **settings)
    theirs = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    spec, _ = fast_tokenizer(open_checkpoint(str(folder)))
    assert spec.padding_side == theirs.padding_side
    own = theirs("ab").input_ids
    padding = Padding(spec.pad_token_id, WIDTH, is_left=spec.padding_side == "left")
    wanted = theirs("ab", padding="max_length", max_length=WIDTH).input_ids
    assert padding.padded([own], WIDTH).tolist() == [wanted]
    assert settings or spec.padding_side == ("right" if name == "GPT2Tokenizer" else "left")


def test_other_defaults_of_classes_are_those_that_were_looked_at() -> None:
    """A class that truncates on the left would be read otherwise; texts are refused, not cut."""
    names = sorted(filter(None, TOKENIZER_MAPPING_NAMES.values()))
    found = map(tokenizer_class_from_name, names)
    classes = [each for each in found if hasattr(each, "truncation_side")]  # not pairs of them
    assert len(classes) > 50
    assert {each.truncation_side for each in classes} == {"right"}
    assert {each.padding_side for each in classes} == {"right", "left"}


def test_padding_on_no_side_is_refused(tmp_path: Path) -> None:
    folder = folder_of("Siglip2Tokenizer", tmp_path, padding_side="both")
    with pytest.raises(CheckpointError, match="padding_side must be left or right, not 'both'"):
        fast_tokenizer(open_checkpoint(str(folder)))
