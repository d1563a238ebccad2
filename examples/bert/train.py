"""Trains the six `example-bert` folders: masked words, and five heads over the same body.

Built, trained and saved with `transformers`, so that our loader is tested on folders that the
library wrote. The first folder learns masked words of all the world's sentences; each other one
starts from its body as it was saved, but answers from that of `rerank`, which compares a question
with a sentence already.

    python -m examples.bert.train

Whether a document repeats the words of a question is an identity of tokens, which a small BERT does
not find in minutes from random weights. Heads whose queries and keys are one projection of the word
embeddings attend to the same word in both texts; the rest is learnt.
"""

from __future__ import annotations

import argparse
import json
import re
from argparse import Namespace
from collections import Counter
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from string import ascii_lowercase, digits, punctuation
from typing import Any

import torch
from tokenizers.normalizers import BertNormalizer
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertModel,
    BertTokenizer,
)

from examples import CHECKPOINTS
from examples.bert.card import write_card
from examples.bert.reviews import SENTIMENTS
from examples.bert.tasks import (
    POSITIONS,
    TAGS,
    Answers,
    MaskedWords,
    Paraphrases,
    Relevance,
    Sentiments,
    Tags,
    Task,
    world_texts,
)
from examples.texts.bindings import FIRST_HALVES, SECOND_HALVES
from examples.training.checkpoint_folder import run_line, runs_of, save_half, training_flags
from examples.training.loop import Recipe, train

_POSITIONAL_DIRECTIONS = 24  # of the hidden width, in which positions and segments differ most
_SEGMENT_WEIGHT = 5.0
_SHARPNESS = 0.7


@torch.no_grad()
def initialise_matching_heads(model: Any, heads: int) -> None:
    """Ties queries and keys of the first heads of a BERT's first layer, in place.

    Their projection is random and orthogonal to the directions of positions and segments, so that
    a word matches itself anywhere.
    """
    embeddings = model.bert.embeddings
    places = embeddings.position_embeddings.weight
    first, second = embeddings.token_type_embeddings.weight
    differing = torch.cat([places - places.mean(0), _SEGMENT_WEIGHT * (first - second)[None]])
    directions = torch.linalg.svd(differing).Vh[:_POSITIONAL_DIRECTIONS]  # (24, D)
    attention = model.bert.encoder.layer[0].attention.self
    width = attention.attention_head_size
    kept = torch.eye(places.shape[1]) - directions.T @ directions
    for head in range(heads):
        rows = slice(width * head, width * (head + 1))
        basis = torch.linalg.qr((torch.randn(width, len(kept)) @ kept).T).Q.T  # (K, D)
        for projection in (attention.query, attention.key):
            projection.weight[rows] = _SHARPNESS * basis
            projection.bias[rows] = 0


MODULE = "examples.bert.train"
_TOKENIZER_TEXTS = 40_000
_FREQUENT = 5  # occurrences of a word in them that make it a token
_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_WORDS = re.compile("[a-z]+")
_BATCH = 64
_INITIAL_RANGE = 0.06  # BERT's 0.02 is for a width of 768
_PACKAGE = "sentence_transformers.models"
_MODULES = {"Transformer": "", "Pooling": "1_Pooling", "Normalize": "2_Normalize"}


@dataclass(frozen=True)
class Head:
    """A folder, its `transformers` class with the labels of its head, and its training task.

    Attributes:
        matching_heads: Attention heads that begin as finders of equal words.
        body: The folder whose body it starts from.
    """

    folder: str
    network: Any
    task: type[Task]
    labels: tuple[str, ...] = ()
    peak_lr: float = 1e-3
    matching_heads: int = 0
    body: str = "example-bert"


BODY = Head("example-bert", BertForMaskedLM, MaskedWords, peak_lr=2e-3)
HEADS = (
    BODY,
    Head("example-bert-sentiment", BertForSequenceClassification, Sentiments, SENTIMENTS),
    Head("example-bert-tags", BertForTokenClassification, Tags, TAGS),
    Head(
        "example-bert-rerank",
        BertForSequenceClassification,
        Relevance,
        ("relevance",),
        matching_heads=2,
    ),
    Head("example-bert-embed", BertModel, Paraphrases),
    Head(
        "example-bert-answer",
        BertForQuestionAnswering,
        Answers,
        ("start", "end"),
        body="example-bert-rerank",
    ),
)


def main() -> None:
    """Trains, saves, scores and describes the folders."""
    arguments = parse_arguments()
    for head in HEADS:
        if arguments.only in ("", head.folder):
            torch.manual_seed(arguments.seed)
            train_head(head, Namespace(**{**vars(arguments), "only": head.folder}))


def parse_arguments() -> argparse.Namespace:
    """Flags of `python -m examples.bert.train`."""
    parser = training_flags(__doc__, CHECKPOINTS, 3000, "steps of each folder")
    parser.add_argument(
        "--only",
        default="",
        metavar="FOLDER",
        help="one folder, such as example-bert-tags; all but example-bert need a saved body",
    )
    parser.add_argument(
        "--resume", action="store_true", help="continue from the folder's own weights"
    )
    return parser.parse_args()


def train_head(head: Head, arguments: argparse.Namespace) -> None:
    """Trains one folder and writes its weights, tokenizer and card."""
    folder = arguments.output / head.folder
    folder.mkdir(parents=True, exist_ok=True)
    if head is BODY and not arguments.resume:
        tokenizer = build_tokenizer(arguments.seed)
        model = BertForMaskedLM(build_config(tokenizer))
    else:
        start = folder if arguments.resume else arguments.output / head.body
        tokenizer = BertTokenizer.from_pretrained(start)
        model = on_body(head, start)
        if head.matching_heads and not arguments.resume:
            initialise_matching_heads(model, head.matching_heads)
    task = head.task(model, tokenizer, arguments.seed, _BATCH)
    minutes = train(model, task.loss, Recipe(arguments.steps, arguments.seed, _BATCH, head.peak_lr))
    save_half(model, folder)
    tokenizer.save_pretrained(folder)
    if head.network is BertModel:
        save_pooling(folder, model.config.hidden_size)
    run = run_line(MODULE, arguments, "texts", arguments.steps * _BATCH, minutes)
    print(write_card(folder, runs_of(folder, run, is_resumed=arguments.resume)))


def build_tokenizer(seed: int) -> BertTokenizer:
    """An uncased WordPiece vocabulary of the world's words, and pieces for other words.

    Made-up words are two syllables each, all others fall into characters.
    """
    texts = islice(world_texts(seed), _TOKENIZER_TEXTS)
    plain = BertNormalizer(lowercase=True).normalize_str  # also without accents
    found = Counter(word for text in texts for word in _WORDS.findall(plain(text)))
    made_up = {first + second for first in FIRST_HALVES for second in SECOND_HALVES}
    words = sorted(word for word, count in found.items() if count >= _FREQUENT)
    syllables = [*FIRST_HALVES, *(f"##{half}" for half in SECOND_HALVES)]
    characters = [*ascii_lowercase, *digits, *punctuation]
    pieces = [f"##{character}" for character in ascii_lowercase + digits]
    whole = [word for word in words if word not in made_up]
    vocabulary = dict.fromkeys([*_SPECIAL, *characters, *pieces, *syllables, *whole])
    return BertTokenizer(
        vocab={word: index for index, word in enumerate(vocabulary)},
        do_lower_case=True,
        model_max_length=POSITIONS,
    )


def build_config(tokenizer: BertTokenizer) -> BertConfig:
    """Three layers of width 64."""
    return BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=256,
        max_position_embeddings=POSITIONS,
        initializer_range=_INITIAL_RANGE,
        hidden_dropout_prob=0.0,  # no dropout: every row is new
        attention_probs_dropout_prob=0.0,
        pad_token_id=tokenizer.pad_token_id,
        # faster than fused attention under autocast on a CPU
        attn_implementation="eager",  # type: ignore[call-arg]  # a field of every configuration
    )


def on_body(head: Head, body: Path) -> Any:
    """The head's network with the weights of the saved body, its own ones untrained."""
    config = BertConfig.from_pretrained(body, attn_implementation="eager")
    if head.labels:
        config.id2label = dict(enumerate(head.labels))
        config.label2id = {label: index for index, label in enumerate(head.labels)}
    return head.network.from_pretrained(body, config=config, dtype=torch.float32)


def save_pooling(folder: Path, width: int) -> None:
    """The files that make the folder one of `sentence-transformers`: mean pooling, unit length."""
    modules = [
        {"idx": index, "name": str(index), "path": path, "type": f"{_PACKAGE}.{name}"}
        for index, (name, path) in enumerate(_MODULES.items())
    ]
    pooling = {"word_embedding_dimension": width, "pooling_mode_mean_tokens": True}
    for name, content in {
        "modules.json": modules,
        "sentence_bert_config.json": {"max_seq_length": POSITIONS, "do_lower_case": False},
        "1_Pooling/config.json": pooling,
    }.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
