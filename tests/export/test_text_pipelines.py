"""Every family of text encoders answers as the pipelines of `transformers`: bundle, no server.

Tokenizer, plan, graph and response are those of serving; ONNX Runtime runs the calls here, so that
a family takes seconds. `tests/e2e/test_understanding.py` does the same through Triton for one.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
import torch
import transformers
from tokenizers.processors import ByteLevel, TemplateProcessing
from transformers.pipelines import pipeline

from export.pipeline.cli import export
from inference.bundle.reader import newest_bundle
from inference.tasks import TASKS
from inference.tasks.shared.loaded_model import LoadedModel
from inference.tasks.shared.model_calls import InferCall, Outputs
from serving.load_model import load_model
from tests.answer_reference import ReadWindow, reference_answers
from tests.export.twins import randomise
from tests.inference.processing.tokenizer_files import CORPUS, NASTY, trained
from triptych.messages import Response

pytestmark = [pytest.mark.full, pytest.mark.slow]

POSITIONS = 80
TOLERANCE = 1e-4
TEXTS = [*CORPUS[:3], "a", NASTY[2], NASTY[5], NASTY[6]]
LONG = " ".join(CORPUS * 3)
FRAME = TemplateProcessing(
    single="[CLS] $A [SEP]",
    pair="[CLS] $A [SEP] $B:1 [SEP]:1",
    special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
)
_LABELS = {
    "TokenClassification": ("O", "B-PER", "I-PER", "B-LOC", "I-LOC"),
    "QuestionAnswering": ("start", "end"),
}

_BERT = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": POSITIONS,
}
_AFTER_PADDING = _BERT | {"max_position_embeddings": POSITIONS + 1}
FAMILIES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "bert": ("Bert", "word pieces", _BERT),
    "roberta": ("Roberta", "bytes", _AFTER_PADDING),
    "xlm-roberta": ("XLMRoberta", "unigram", _AFTER_PADDING | {"type_vocab_size": 1}),
    "distilbert": (
        "DistilBert",
        "word pieces",
        {
            "dim": 32,
            "n_layers": 2,
            "n_heads": 4,
            "hidden_dim": 48,
            "max_position_embeddings": POSITIONS,
        },
    ),
    "electra": ("Electra", "word pieces", _BERT | {"embedding_size": 16}),
    "albert": ("Albert", "unigram", _BERT | {"embedding_size": 16}),
    "mpnet": ("MPNet", "word pieces", _BERT | {"max_position_embeddings": POSITIONS + 2}),
    "modernbert": (
        "ModernBert",
        "bytes",
        _BERT
        | {"local_attention": 8, "intermediate_size": 24, "num_hidden_layers": 3}
        | {"bos_token_id": 1, "cls_token_id": 1, "eos_token_id": 2, "sep_token_id": 2},
    ),
    "deberta-v2": (
        "DebertaV2",
        "unigram",
        _BERT | {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]},
    ),
    "xlnet": ("XLNet", "unigram", {"d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 48}),
}
"""Name → prefix of the classes in `transformers`, kind of tokenizer, configuration."""
_LLAMA = _BERT | {"num_key_value_heads": 2}
_BART = {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "max_position_embeddings": POSITIONS,
}
_BART |= {f"{side}_attention_heads": 4 for side in ("encoder", "decoder")}
_BART |= {f"{side}_ffn_dim": 48 for side in ("encoder", "decoder")}
_T5 = {"d_model": 32, "num_layers": 2, "num_heads": 4, "d_kv": 8, "d_ff": 48}
_IDS = {"bos_token_id": 2, "eos_token_id": 3, "decoder_start_token_id": 3}
READERS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "gpt2": (
        "GPT2",
        "bytes",
        {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": POSITIONS},
    ),
    "gpt_neo": (
        "GPTNeo",
        "bytes",
        {"hidden_size": 32, "num_layers": 2, "num_heads": 4, "window_size": 8}
        | {"attention_types": [[["global", "local"], 1]], "max_position_embeddings": POSITIONS},
    ),
    "opt": ("OPT", "bytes", _BERT | {"ffn_dim": 48, "word_embed_proj_dim": 24}),
    "llama": ("Llama", "unigram", _LLAMA),
    "mistral": ("Mistral", "unigram", _LLAMA | {"sliding_window": 8}),
    "qwen2": ("Qwen2", "bytes", _LLAMA),
    "qwen3": ("Qwen3", "bytes", _LLAMA | {"head_dim": 8}),
    "smollm3": ("SmolLM3", "bytes", _LLAMA),
    "bart": ("Bart", "bytes", _BART),
    "mbart": ("MBart", "unigram", _BART),
    "mvp": ("Mvp", "bytes", _BART),
    "bigbird_pegasus": ("BigBirdPegasus", "unigram", _BART | {"block_size": 8}),
    "t5": ("T5", "unigram", _T5),
    "mt5": ("MT5", "unigram", _T5),
    "umt5": ("UMT5", "unigram", _T5),
}
"""Decoders and encoder-decoders with a head for answers, likewise."""
POST_PROCESSORS = {
    **dict.fromkeys(
        ("gpt2", "gpt_neo", "qwen2", "qwen3", "smollm3"), ByteLevel(trim_offsets=False)
    ),
    "opt": TemplateProcessing(
        single="[CLS] $A", pair="[CLS] $A [CLS]:1 $B:1", special_tokens=[("[CLS]", 2)]
    ),
    **dict.fromkeys(
        ("bigbird_pegasus", "t5", "mt5", "umt5"),
        TemplateProcessing(
            single="$A [SEP]", pair="$A [SEP] $B [SEP]", special_tokens=[("[SEP]", 3)]
        ),
    ),
    "mbart": TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A $B [SEP]",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    ),
}
"""What published tokenizers put around a text and a pair, where that is not the kind's."""
POST_PROCESSORS |= dict.fromkeys(("llama", "mistral"), POST_PROCESSORS["opt"])
_WITHOUT_CLASS = ("gpt2", "gpt_neo", "opt", "llama", "mistral", "qwen2", "qwen3", "smollm3")
_WITHOUT_CLASS += ("bigbird_pegasus", "t5", "mt5", "umt5")
_WITHOUT_SEGMENTS = ("roberta", "xlm-roberta", "distilbert", "mpnet", "modernbert")

Exported = Callable[[str, str], tuple[Path, LoadedModel]]


def run(folder: Path, call: InferCall) -> Outputs:
    """The outputs of one call, by ONNX Runtime in this process."""
    session = ort.InferenceSession(folder / call.model / str(call.version) / "model.onnx")
    outputs = session.run(list(call.outputs), dict(call.inputs))
    return dict(zip(call.outputs.values(), outputs, strict=True))


@pytest.fixture
def exported(tmp_path: Path) -> Exported:
    """Exports a family with a head: the checkpoint, and the model as a gateway loads it."""

    def make(family: str, head: str) -> tuple[Path, LoadedModel]:
        prefix, tokens, fields = (FAMILIES | READERS)[family]
        fields = fields | (_IDS if family in READERS else {})
        checkpoint = tmp_path / "tiny"
        checkpoint.mkdir()
        _, tokenizer = trained(tokens, checkpoint)
        if (
            tokens == "unigram" and family != "xlnet"
        ):  # whose class token is last, in a segment of its own
            tokenizer.backend_tokenizer.post_processor = POST_PROCESSORS.get(family, FRAME)
        elif family in POST_PROCESSORS:
            tokenizer.backend_tokenizer.post_processor = POST_PROCESSORS[family]
        if family in _WITHOUT_CLASS:
            tokenizer.cls_token = None
        if family in ("llama", "mistral"):
            tokenizer.padding_side = "left"
        tokenizer.model_max_length = POSITIONS
        if family in FAMILIES and family not in _WITHOUT_SEGMENTS:
            tokenizer.init_kwargs["model_input_names"] = [
                "input_ids",
                "token_type_ids",
                "attention_mask",
            ]
        tokenizer.save_pretrained(checkpoint)
        end = "Simple" if (family, head) == ("xlnet", "QuestionAnswering") else ""
        kind = getattr(transformers, f"{prefix}For{head}{end}")
        labels = dict(enumerate(_LABELS.get(head, "xyz")))
        config = kind.config_class(
            vocab_size=len(tokenizer), pad_token_id=0, id2label=labels, **fields
        )
        model = kind(config).eval()
        randomise(model)
        model.save_pretrained(checkpoint)
        export(str(checkpoint), repository=tmp_path / "repository")
        return checkpoint, load_model(newest_bundle(tmp_path / "repository", "tiny"))

    return make


def asked(model: LoadedModel, folder: Path, task: str, **fields: object) -> Response[Any]:
    """The response to a request, as the gateway computes it."""
    served = TASKS[task]
    plan = served.prepare(served.declaration.request(**fields), (), model)
    return plan.finish([run(folder, call) for call in plan.calls])


def reference(task: str, checkpoint: Path) -> Any:
    """The pipeline of `transformers` over the same folder."""
    return pipeline(task, model=str(checkpoint), device="cpu", dtype=torch.float32)


def assert_scores(found: list[float], expected: list[float]) -> None:
    np.testing.assert_allclose(found, expected, atol=TOLERANCE)


@pytest.mark.parametrize("family", FAMILIES)
def test_classes_are_those_of_the_pipeline(family: str, exported: Exported, tmp_path: Path) -> None:
    checkpoint, model = exported(family, "SequenceClassification")
    theirs, repository = (
        reference("text-classification", checkpoint),
        tmp_path / "repository",
    )
    pairs = [(TEXTS[0], TEXTS[3]), (TEXTS[3], TEXTS[1])]
    data = [
        *asked(model, repository, "classify", texts=TEXTS).data,
        *asked(model, repository, "classify", pairs=pairs).data,
    ]
    inputs = [*TEXTS, *({"text": a, "text_pair": b} for a, b in pairs)]
    for item, text in zip(data, inputs, strict=True):
        expected = theirs(text, top_k=None)
        assert [one.label for one in item.labels] == [one["label"] for one in expected]
        assert_scores([one.score for one in item.labels], [one["score"] for one in expected])


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.filterwarnings("ignore:Tokenizer does not support real words")
def test_tags_are_those_of_the_pipeline(family: str, exported: Exported, tmp_path: Path) -> None:
    checkpoint, model = exported(family, "TokenClassification")
    theirs, repository = (
        reference("token-classification", checkpoint),
        tmp_path / "repository",
    )
    theirs.tokenizer.model_max_length = model.manifest.limits.max_input_tokens
    for aggregation in ("none", "simple", "first", "average", "max"):
        for texts, stride in ((TEXTS, None), ([LONG], 7)):
            if stride is not None and aggregation == "none":
                continue
            given = {"stride": stride} if stride else {}
            data = asked(
                model, repository, "tag", texts=texts, aggregation=aggregation, **given
            ).data
            for text, item in zip(texts, data, strict=True):
                expected = theirs(text, aggregation_strategy=aggregation, **given)
                assert [(one.start, one.end, one.label) for one in item.tokens] == [
                    (one["start"], one["end"], one.get("entity_group") or one["entity"])
                    for one in expected
                ]
                assert_scores(
                    [one.score for one in item.tokens], [one["score"] for one in expected]
                )


@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "xlnet"])
def test_masks_are_filled_as_by_the_pipeline(
    family: str, exported: Exported, tmp_path: Path
) -> None:
    checkpoint, model = exported(family, "MaskedLM")
    theirs, repository = reference("fill-mask", checkpoint), tmp_path / "repository"
    texts = ["Ada [MASK] was born in London.", "[MASK] red", "the small [MASK]"]
    data = asked(model, repository, "fill-mask", texts=texts, top_k=20).data
    for text, item in zip(texts, data, strict=True):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            expected = theirs(text, top_k=20)
        (found,) = item.masks
        assert [one.token_id for one in found] == [one["token"] for one in expected]
        assert [one.token for one in found] == [one["token_str"] for one in expected]
        assert [one.text for one in found] == [one["sequence"] for one in expected]
        assert_scores([one.score for one in found], [one["score"] for one in expected])


@dataclass(frozen=True)
class TokenWindow(ReadWindow):
    """A window with the characters of its tokens themselves."""

    tokens: Sequence[tuple[int, int]] = ()


def read_windows(
    checkpoint: Path, question: str, passage: str, number: int, size: int, stride: int
) -> Iterator[TokenWindow]:
    """The windows of a passage as the pipeline of version 4 made and read them.

    Its class token's place is the tokenizer's, where the pipeline read the first token, and words
    are whole, where those of the pipeline were cut at the end of a window.
    """
    tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint)
    reader = transformers.AutoModelForQuestionAnswering.from_pretrained(checkpoint).eval()
    is_first = tokenizer.padding_side == "right"
    texts = (question, passage) if is_first else (passage, question)
    cut = tokenizer(
        *texts,
        truncation="only_second" if is_first else "only_first",
        max_length=size,
        stride=stride,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
    )
    own = 1 if is_first else 0
    (whole,) = tokenizer(*texts).encodings
    for row, encoding in enumerate(cut.encodings):
        named = {name: torch.tensor([cut[name][row]]) for name in tokenizer.model_input_names}
        with torch.no_grad():
            output = reader(**named)
        places = []
        for token, (start, end) in enumerate(cut["offset_mapping"][row]):
            is_own = encoding.token_to_sequence(token) == own and start < end
            word = whole.char_to_word(start, own) if is_own else None
            places.append((start, end) if word is None else whole.word_to_chars(word, own))
        ids, sequences = cut["input_ids"][row], encoding.sequence_ids
        yield TokenWindow(
            number,
            passage,
            torch.cat([output.start_logits, output.end_logits]).T.numpy(),
            [which == own for which in sequences],
            ids.index(tokenizer.cls_token_id) if tokenizer.cls_token_id in ids else None,
            places,
            cut["offset_mapping"][row],
        )


@pytest.mark.parametrize("family", FAMILIES | READERS)
def test_answers_are_those_of_the_rules_of_the_pipeline(
    family: str, exported: Exported, tmp_path: Path
) -> None:
    """`transformers` 5 has no such pipeline: its model and tokenizer, and the rules of version 4.

    A window of the passages is shorter than they are.
    """
    checkpoint, model = exported(family, "QuestionAnswering")
    question, passages, size, stride = TEXTS[0], [LONG, CORPUS[1], NASTY[5]], 50, 9
    for is_aligned in (True, False):
        read = [
            window
            for number, passage in enumerate(passages)
            for window in read_windows(checkpoint, question, passage, number, size, stride)
        ]
        for n, longest, threshold in ((1, 15, None), (8, 4, None), (6, 15, 0.0), (20, 60, 2.5)):
            if threshold is not None and family in _WITHOUT_CLASS:
                continue
            fields = {"n": n, "max_answer_tokens": longest, "null_threshold": threshold}
            (item,) = asked(
                model,
                tmp_path / "repository",
                "answer",
                question=question,
                passages=passages,
                max_window_tokens=size,
                stride=stride,
                align_to_words=is_aligned,
                **fields,
            ).data
            wanted, null_score = reference_answers(
                [each if is_aligned else replace(each, places=each.tokens) for each in read],
                n,
                longest,
                threshold,
            )
            found = [(one.passage, one.start, one.end) for one in item.answers]
            assert found == [one[:3] for one in wanted]
            assert_scores([one.score for one in item.answers], [one[3] for one in wanted])
            assert (item.null_score is None) == (null_score is None) == (family in _WITHOUT_CLASS)
            if null_score is not None:
                assert_scores([item.null_score], [null_score])
