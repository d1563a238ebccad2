"""Our tokenizers against those of `transformers`: ids, pairs, offsets, text, and cut texts."""

from __future__ import annotations

import itertools
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import sentencepiece
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast
from transformers.pipelines.token_classification import (
    AggregationStrategy,
    TokenClassificationPipeline,
)

from inference.bundle.inputs import TokenizerSpec
from inference.bundle.manifest import Bundle, Manifest
from inference.errors import BundleError, InvalidRequest
from inference.processing.tokenizer import EncodedText, Rows, cut_texts
from inference.processing.tokenizer_kinds import (
    FastTokenizer,
    SentencePiecePair,
    clean_up,
    load_tokenizer,
)
from inference.tasks.shared.labels import windows
from tests.inference.processing.tokenizer_files import CORPUS, KINDS, NASTY, byte_pairs, trained
from tests.inference.tiny_models import make_manifest

MARIAN_FILES = ("source.spm", "target.spm", "vocab.json")
SPANISH = """este restaurante tiene buena comida.
el mundo no es suficiente
¿dónde está la casa roja? ¡qué bonita!
tres perros grandes corren por la calle vieja.
mañana comeremos en el jardín con nuestros amigos""".splitlines()
ENGLISH = """this restaurant has good food.
the world is not enough
where is the red house? how pretty!
three big dogs run along the old street.
tomorrow we will eat in the garden with our friends""".splitlines()
TEXTS = [
    *SPANISH, *ENGLISH, "", " ", "  dos  espacios\t y tab ", "ABC xyz 漢字 🙂", "a</s>b",
    "<pad><unk> x", ">>en<< hola", ">>zz<< hola", "x >>en<< hola", ">>sin fin", "línea\nnueva",
    "e\u0301 \u00a0 ﬁn",
    "</s>>>en<< hola",
]  # fmt: skip


def write_marian(folder: Path) -> TokenizerSpec:
    """A Marian folder: two small sentencepiece models, one vocabulary that lacks some pieces."""
    pieces: list[str] = []
    for side, lines in (("source", SPANISH), ("target", ENGLISH)):
        corpus = folder / f"{side}.txt"
        corpus.write_text("\n".join(lines * 20), encoding="utf-8")
        sentencepiece.SentencePieceTrainer.train(
            input=str(corpus), model_prefix=str(folder / side), vocab_size=70,
            hard_vocab_limit=False, minloglevel=2,
        )  # fmt: skip
        (folder / f"{side}.model").rename(folder / f"{side}.spm")
        model = sentencepiece.SentencePieceProcessor(model_file=str(folder / f"{side}.spm"))
        pieces += [model.id_to_piece(number) for number in range(3, model.get_piece_size())]
    missing = {pieces[5], pieces[11]}  # Marian vocabularies may lack pieces
    kept = [piece for piece in dict.fromkeys(pieces) if piece not in missing]
    words = ["</s>", "<unk>", *kept, ">>en<<", "<pad>"]
    vocabulary = {piece: number for number, piece in enumerate(words)}
    (folder / "vocab.json").write_text(json.dumps(vocabulary), encoding="utf-8")
    return TokenizerSpec(
        kind="sentencepiece_pair",
        pad_token_id=vocabulary["<pad>"],
        eos_token_id=0,
        unk_token_id=1,
        files={"source": "source.spm", "target": "target.spm", "vocab": "vocab.json"},
    )


@pytest.fixture(scope="module")
def marian_folder(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, TokenizerSpec]:
    folder = tmp_path_factory.mktemp("marian")
    return folder, write_marian(folder)


@pytest.fixture(scope="module")
def marian(marian_folder):
    folder, spec = marian_folder
    return SentencePiecePair(spec, folder)


@pytest.fixture(scope="module")
def marian_oracle(marian_folder):
    import warnings

    from transformers import MarianTokenizer

    folder, _ = marian_folder
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "Recommended: pip install sacremoses"
        return MarianTokenizer(*(str(folder / name) for name in MARIAN_FILES))


@pytest.mark.parametrize("text", TEXTS)
def test_marian_ids_equal_those_of_transformers(marian, marian_oracle, text: str) -> None:
    assert marian.encode(text) == marian_oracle(text)["input_ids"]


def test_marian_texts_exercise_unknown_and_end(marian) -> None:
    seen = {number for text in TEXTS for number in marian.encode(text, add_special_tokens=False)}
    assert {0, 1} <= seen


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=30))
def test_marian_ids_equal_for_any_text(marian, marian_oracle, text: str) -> None:
    assert marian.encode(text) == marian_oracle(text)["input_ids"]


@given(ids=st.lists(st.integers(0, 60), max_size=20))
def test_marian_text_equals_that_of_transformers(marian, marian_oracle, ids: list[int]) -> None:
    assert marian.decode(ids) == marian_oracle.decode(ids, skip_special_tokens=True)


def test_marian_clean_up_follows_the_manifest(marian_folder, marian_oracle) -> None:
    folder, spec = marian_folder
    cleaned = SentencePiecePair(spec.model_copy(update={"clean_up_spaces": True}), folder)
    vocabulary = json.loads((folder / "vocab.json").read_text())
    ids = [vocabulary[piece] for piece in ("▁", ".", "▁", "?")]
    assert cleaned.decode(ids) == marian_oracle.decode(
        ids, skip_special_tokens=True, clean_up_tokenization_spaces=True
    )
    assert cleaned.decode(ids) != marian_oracle.decode(ids, skip_special_tokens=True)


def test_separate_vocabularies_decode_with_the_target_side(marian_folder, tmp_path: Path) -> None:
    folder, spec = marian_folder
    for name in MARIAN_FILES[:2]:
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    (tmp_path / "vocab.json").write_text(json.dumps({"</s>": 0, "<unk>": 1, "▁a": 2, "<pad>": 3}))
    target = {"</s>": 0, "<unk>": 1, "▁the": 2, "▁red": 3, "<pad>": 4}
    (tmp_path / "target_vocab.json").write_text(json.dumps(target))
    files = {**spec.files, "target_vocab": "target_vocab.json"}
    apart = SentencePiecePair(spec.model_copy(update={"files": files, "pad_token_id": 3}), tmp_path)
    assert apart.decode([2, 3, 4, 0]) == "the red"


def test_each_side_of_separate_vocabularies_has_its_own_rows(marian_folder) -> None:
    folder, spec = marian_folder
    whole = SentencePiecePair(spec, folder)
    source = SPANISH[1]
    target = next(text for text in " ".join(ENGLISH).split() if whole.encode_output(text))
    read, written = max(whole.encode(source)), max(whole.encode_output(target) or ())
    for rows in (Rows(read, written + 1), Rows(None, written)):
        bounded = SentencePiecePair(spec, folder, rows)
        assert (bounded.encode_output(target) is None) == (rows.written == written)
        assert bool(bounded.tokens_without_rows()) == (rows.read == read)
        if rows.read is None:
            assert bounded.encode(source) == whole.encode(source)
            continue
        with pytest.raises(InvalidRequest, match=f"is token {read}, and the model has"):
            bounded.encode(source)
        assert bounded.encode("") == [0]


def byte_level(folder: Path) -> TokenizerSpec:
    """GPT-2's kind of tokenizer with CLIP's post-processing, truncation and padding switched on."""
    tokenizer = byte_pairs(320, ["<s>", "</s>"], ENGLISH)
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    tokenizer.enable_truncation(6)
    tokenizer.enable_padding(length=12)
    tokenizer.save(str(folder / "tokenizer.json"))
    return TokenizerSpec(
        kind="tokenizers", pad_token_id=1, eos_token_id=1, files={"tokenizer": "tokenizer.json"}
    )


@pytest.fixture(scope="module")
def fast_pair(tmp_path_factory: pytest.TempPathFactory):
    from transformers import PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("fast")
    spec = byte_level(folder)
    oracle = PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"), bos_token="<s>", eos_token="</s>"
    )
    return FastTokenizer(spec, folder), oracle


@pytest.mark.parametrize("text", [*TEXTS, "word " * 50])
def test_fast_ids_equal_those_of_transformers_untruncated(fast_pair, text: str) -> None:
    ours, oracle = fast_pair
    assert ours.encode(text) == oracle(text, truncation=False, padding=False)["input_ids"]
    bare = oracle(text, truncation=False, padding=False, add_special_tokens=False)["input_ids"]
    assert ours.encode(text, add_special_tokens=False) == bare


@given(ids=st.lists(st.integers(0, 319), max_size=20))
def test_fast_text_equals_that_of_transformers(fast_pair, ids: list[int]) -> None:
    ours, oracle = fast_pair
    assert ours.decode(ids) == oracle.decode(ids, skip_special_tokens=True)


CHECKPOINTS = Path(__file__).parents[3] / "examples" / "checkpoints"
EXAMPLES = {  # our files and special ids beside the folders that `transformers` reads
    "example-captioner": {"pad_token_id": 0, "files": {"tokenizer": "tokenizer.json"}},
    "example-clip": {"pad_token_id": 648, "files": {"tokenizer": "tokenizer.json"}},
}


@pytest.mark.parametrize(("name", "fields"), EXAMPLES.items(), ids=EXAMPLES)
def test_example_tokenizers_equal_those_of_transformers(name: str, fields: dict) -> None:
    from transformers import AutoTokenizer

    folder = CHECKPOINTS / name
    oracle = AutoTokenizer.from_pretrained(folder)
    ours = FastTokenizer(TokenizerSpec(kind="tokenizers", **fields), folder)
    for text in [*TEXTS, "a photo of a Small  RED circle"]:
        assert ours.encode(text) == oracle(text)["input_ids"]
    for first in range(0, len(oracle), 7):
        ids = list(range(first, min(first + 7, len(oracle))))
        assert ours.decode(ids) == oracle.decode(ids, skip_special_tokens=True)


def test_clean_up_equals_that_of_transformers(marian_oracle) -> None:
    text = "it 's a dog , is n't it ? I 'm sure ! we 've 'nt they 're . ' x '"
    assert clean_up(text) == marian_oracle.clean_up_tokenization(text)


def manifest(tokenizer: TokenizerSpec | None) -> Manifest:
    return make_manifest("tiny", "translate", {}, parts={}, tokenizer=tokenizer)


def test_loader_picks_the_kind_of_the_manifest(marian_folder, tmp_path: Path) -> None:
    folder, spec = marian_folder
    assert isinstance(load_tokenizer(Bundle(folder, manifest(spec))), SentencePiecePair)
    fast = byte_level(tmp_path)
    assert isinstance(load_tokenizer(Bundle(tmp_path, manifest(fast))), FastTokenizer)
    assert load_tokenizer(Bundle(tmp_path, manifest(None))) is None


@pytest.mark.parametrize("damage", [b"", b"{}", b"not a tokenizer"])
def test_damaged_tokenizer_is_a_bundle_error(tmp_path: Path, damage: bytes) -> None:
    spec = byte_level(tmp_path)
    (tmp_path / "tokenizer.json").write_bytes(damage)
    with pytest.raises(BundleError, match="cannot load the tokenizer"):
        load_tokenizer(Bundle(tmp_path, manifest(spec)))


def test_sentencepiece_pair_needs_an_end_token(marian_folder) -> None:
    folder, spec = marian_folder
    endless = manifest(spec.model_copy(update={"eos_token_id": None}))
    with pytest.raises(BundleError, match="eos_token_id"):
        load_tokenizer(Bundle(folder, endless))


Both = tuple[FastTokenizer, PreTrainedTokenizerFast]
TEXT = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=40)
LONG = " ".join(CORPUS)


@pytest.fixture(scope="module", params=KINDS)
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Both:
    return trained(request.param, tmp_path_factory.mktemp("tokenizer"))


def assert_equal(both: Both, text: str) -> None:
    ours, theirs = both
    found = ours.encode_text(text, with_offsets=True)
    expected = theirs(text, return_offsets_mapping=True, return_token_type_ids=True)
    assert list(found.ids) == expected["input_ids"]
    assert list(found.segments) == expected["token_type_ids"]
    special = expected.encodings[0].special_tokens_mask
    assert [sequence is None for sequence in found.sequences] == [bool(one) for one in special]
    inside = [place for place, one in zip(found.offsets, special, strict=True) if not one]
    assert inside == [
        place for place, one in zip(expected["offset_mapping"], special, strict=True) if not one
    ]


@pytest.mark.parametrize("text", [*NASTY, LONG])
def test_texts_equal_those_of_transformers(both: Both, text: str) -> None:
    assert_equal(both, text)


@given(text=TEXT)
def test_any_text_equals_that_of_transformers(both: Both, text: str) -> None:
    assert_equal(both, text)


def test_offsets_are_indices_of_a_python_string(both: Both) -> None:
    text = "🙂 Ada 👩‍🚀 London"
    found = both[0].encode_text(text, with_offsets=True)
    spans = [
        place
        for place, sequence in zip(found.offsets, found.sequences, strict=True)
        if sequence == 0
    ]
    start = text.index("London")
    inside = [span for span in spans if span[1] > start]
    assert "".join(text[a:b] for a, b in inside).strip() == "London"


@pytest.mark.parametrize("first", [NASTY[0], NASTY[2], "a"])
@pytest.mark.parametrize("second", [NASTY[1], LONG])
@pytest.mark.parametrize("limit", [None, 64, 23, 22, 9, 8, 7])
def test_pairs_equal_those_of_transformers(
    both: Both, first: str, second: str, limit: int | None
) -> None:
    ours, theirs = both
    for a, b in ((first, second), (second, first)):
        found = ours.encode_text(a, b)
        if limit is not None:
            found = found.truncate(limit)
        expected = theirs(
            a, b, truncation="longest_first" if limit else False, max_length=limit,
            return_token_type_ids=True,
        )  # fmt: skip
        assert list(found.ids) == expected["input_ids"]
        assert list(found.segments) == expected["token_type_ids"]


@pytest.mark.parametrize("end", ["right", "left"])
@pytest.mark.parametrize("second", [None, NASTY[1], LONG])
@pytest.mark.parametrize("limit", [64, 23, 22, 9, 8, 7])
def test_either_end_is_cut_as_by_transformers(
    both: Both, second: str | None, limit: int, end: Literal["left", "right"]
) -> None:
    ours, theirs = both
    before = theirs.truncation_side
    theirs.truncation_side = end
    try:
        for texts in ((NASTY[0], second), (LONG, second), (second or "a", LONG)):
            found = ours.encode_text(*texts).truncate(limit, end)
            expected = theirs(
                *texts, truncation="longest_first", max_length=limit, return_token_type_ids=True
            )
            assert list(found.ids) == expected["input_ids"]
            assert list(found.segments) == expected["token_type_ids"]
    finally:
        theirs.truncation_side = before


@pytest.mark.parametrize("limit", [8, 12, 30, 61])
@pytest.mark.parametrize("stride", [0, 1, 5])
@pytest.mark.parametrize("text", [LONG, NASTY[0], NASTY[2], "a", " "])
def test_windows_equal_those_of_transformers(
    both: Both, text: str, limit: int, stride: int
) -> None:
    ours, theirs = both
    whole = ours.encode_text(text, with_offsets=True)
    found = [whole.at(positions) for positions in windows(whole, limit, stride, "stride")]
    expected = theirs(
        text, truncation=True, max_length=limit, stride=stride, return_overflowing_tokens=True,
        return_offsets_mapping=True, return_token_type_ids=True,
    )  # fmt: skip
    assert [list(one.ids) for one in found] == expected["input_ids"]
    assert [list(one.segments) for one in found] == expected["token_type_ids"]
    for one, places in zip(found, expected["offset_mapping"], strict=True):
        inside = [i for i, sequence in enumerate(one.sequences) if sequence is not None]
        assert [one.offsets[i] for i in inside] == [places[i] for i in inside]


@pytest.mark.parametrize("length", range(1, 40))
@pytest.mark.parametrize(("limit", "stride"), [(9, 0), (9, 3), (9, 6)])
def test_windows_cover_a_text_of_any_length(
    both: Both, length: int, limit: int, stride: int
) -> None:
    whole = both[0].encode_text(LONG)
    inside = [i for i, sequence in enumerate(whole.sequences) if sequence is not None]
    special = [i for i, sequence in enumerate(whole.sequences) if sequence is None]
    text = whole.at(sorted({*inside[:length], *special}))
    cut = windows(text, limit, stride, "stride")
    own = [[i for i in one if text.sequences[i] is not None] for one in cut]
    assert {i for one in own for i in one} == set(range(len(text))) - {
        i for i, sequence in enumerate(text.sequences) if sequence is None
    }
    assert all(len(one) <= limit for one in cut)
    for before, after in itertools.pairwise(own):
        assert len(set(before) & set(after)) == stride


def test_stride_that_does_not_advance_is_refused(both: Both) -> None:
    whole = both[0].encode_text(LONG)
    with pytest.raises(InvalidRequest, match=r"stride is 6, a window has 6 .* at most 5") as caught:
        windows(whole, 8, 6, "stride")
    assert caught.value.field == "stride"
    short = both[0].encode_text("a")
    assert len(windows(short, 8, 6, "stride")) == 1


def test_windows_of_a_text_are_limited() -> None:
    text = EncodedText([1] * 4096, [0] * 4096, [None, *[0] * 4094, None])
    with pytest.raises(InvalidRequest, match="3585 windows of 512 tokens, at most 128") as caught:
        windows(text, 512, 509, "stride")
    assert caught.value.field == "stride"
    assert len(windows(text, 512, 478, "stride")) == 113


@pytest.fixture(scope="module")
def is_subword(both: Both) -> Callable[[str], list[bool]]:
    """What the pipeline of `transformers` decides, without a model."""
    _, theirs = both
    pipeline = object.__new__(TokenClassificationPipeline)
    pipeline.tokenizer = theirs

    def decide(text: str) -> list[bool]:
        made = theirs(text, return_offsets_mapping=True)
        mask = np.zeros(len(made["input_ids"]))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = pipeline.gather_pre_entities(
                text,
                np.array(made["input_ids"]),
                np.zeros((len(mask), 2)),
                made["offset_mapping"],
                mask,
                AggregationStrategy.FIRST,
            )
        return [one["is_subword"] for one in found]

    return decide


@pytest.mark.parametrize("text", [*NASTY, LONG])
def test_words_are_those_of_the_pipeline(
    both: Both, is_subword: Callable[[str], list[bool]], text: str
) -> None:
    ours, _ = both
    encoded = ours.encode_text(text, with_offsets=True)
    inside = [i for i, sequence in enumerate(encoded.sequences) if sequence is not None]
    found, expected = ours.continues(text, encoded), is_subword(text)
    assert [found[i] for i in inside] == [expected[i] for i in inside]


def test_some_words_have_several_tokens(both: Both) -> None:
    assert any(both[0].continues(LONG, both[0].encode_text(LONG, with_offsets=True)))


@pytest.mark.parametrize("text", NASTY)
@pytest.mark.parametrize("skip", [True, False])
def test_rendered_text_is_that_of_transformers(both: Both, text: str, skip: bool) -> None:
    ours, theirs = both
    ids = theirs(text)["input_ids"]
    assert ours.render(ids, skip_special_tokens=skip) == theirs.decode(
        ids, skip_special_tokens=skip
    )


def test_token_of_a_text_is_by_name_or_alone(both: Both) -> None:
    ours, theirs = both
    for name, number in list(theirs.get_vocab().items())[:60]:
        assert ours.token_id(name) == number
    assert ours.token_id("a b c d") is None
    assert ours.token_id("") is None


End = Literal["left", "right"]
ENDS: tuple[End, ...] = ("right", "left")
LIMIT = 16
MOST = 100 * LIMIT


def ids_of(theirs: PreTrainedTokenizerFast, texts: tuple[str, ...], end: End) -> list[int]:
    before = theirs.truncation_side
    theirs.truncation_side = end
    try:
        found = theirs(*texts, truncation="longest_first", max_length=LIMIT)
    finally:
        theirs.truncation_side = before
    return list(found["input_ids"])


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("texts", [(LONG,), (LONG * 60,), ("a b", LONG * 60), (LONG * 60, LONG)])
def test_tokens_are_those_of_the_whole_texts(both: Both, texts: tuple[str, ...], end: End) -> None:
    ours, theirs = both
    found = cut_texts(ours, texts, LIMIT, end, MOST)
    assert found is not None
    assert list(found.ids) == ids_of(theirs, texts, end)
    assert found.cut_characters > 0


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("text", ["a b", "Ada Lovelace", "e\u0301"])
def test_a_text_that_fits_is_not_cut(both: Both, text: str, end: End) -> None:
    ours, _ = both
    found = cut_texts(ours, (text,), LIMIT, end, MOST)
    whole = ours.encode_text(text, with_offsets=True)
    assert found is not None
    assert (list(found.ids), list(found.offsets)) == (list(whole.ids), list(whole.offsets))
    assert found.cut_characters == 0


@pytest.mark.parametrize("text", [LONG, LONG * 60, *NASTY])
def test_what_was_cut_and_what_was_read_are_the_whole_text(both: Both, text: str) -> None:
    ours, _ = both
    right = cut_texts(ours, (text,), LIMIT, "right", MOST)
    left = cut_texts(ours, (text,), LIMIT, "left", MOST)
    assert right is not None
    assert left is not None
    rest = len(text) - right.cut_characters
    assert max(end for _, end in right.places(0)) <= rest + 1  # a character of several tokens
    starts = [start for start, end in left.places(0) if end > start]
    assert min(starts) >= left.cut_characters - 1
    if right.cut_characters:
        # The part that was cut off begins with the first token that was not read.
        first = ours.encode_text(text, with_offsets=True).places(0)[len(right.places(0))]
        assert first[0] == rest


def test_offsets_of_what_is_left_are_those_of_the_whole_text(both: Both) -> None:
    ours, _ = both
    text = LONG * 60
    found = cut_texts(ours, (text,), LIMIT, "left", MOST)
    whole = ours.encode_text(text, with_offsets=True).places(0)
    assert found is not None
    assert found.places(0) == whole[-len(found.places(0)) :]


@pytest.mark.parametrize("end", ENDS)
def test_a_text_whose_tokens_lie_behind_what_is_read_is_not_cut(both: Both, end: End) -> None:
    spaces = " " * (MOST + 1)
    text = f"{spaces}a" if end == "right" else f"a{spaces}"
    found = cut_texts(both[0], (text,), LIMIT, end, MOST)
    if found is not None:  # each space is a token
        assert found.cut_characters > MOST - LIMIT
    else:
        assert len(both[0].encode_text(spaces)) <= LIMIT
