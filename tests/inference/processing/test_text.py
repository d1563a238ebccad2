"""Our tokenizers against those of `transformers`, on tokenizer files trained in the test."""

import json
from pathlib import Path

import pytest
import sentencepiece
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from inference.bundle.inputs import TokenizerSpec
from inference.bundle.manifest import Bundle, Manifest
from inference.errors import BundleError, InvalidRequest
from inference.processing.text import FastTokenizer, SentencePiecePair, clean_up, load_tokenizer
from inference.processing.tokenizer import Rows
from tests.inference.manifests import make_manifest
from tests.inference.processing.byte_pairs import byte_pairs

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
