"""Trains `example-gpt`: a small GPT-2 for text of the example world and in-context learning.

Built, trained and saved with `transformers`, so that our loader is tested on a folder that the
library wrote. The first stage trains on episodes of fresh bindings only, the second on all episodes
and on sentences and captions of the example world.

    python -m examples.gpt.train

To look a word up in the prompt, one layer must copy the preceding tokens to each position, and the
next must find the position whose copy is the query word (Olsson et al. 2022, "In-context Learning
and Induction Heads", arXiv 2209.11895). Gradient descent alone is slow to find both, because
neither lowers the loss without the other; so the first two layers are initialised close to them.
They are ordinary weights, trained like all others.

Legend: D width, K width of a head; dimensions 0 to K hold positions, then follow three copies of K.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import torch
from tokenizers import ByteLevelBPETokenizer
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, GPT2Tokenizer

from examples import checkpoint
from examples.gpt.card import write_card
from examples.gpt.episodes import FAMILIES, FRESH, Family, Lesson, lessons
from examples.gpt.scores import accuracy, answerer_of
from examples.scenes.scene import caption, scenes
from examples.texts.grammar import sentences
from examples.training.checkpoint_folder import save_half, start, training_flags
from examples.training.loop import Recipe, train

DISTANCES = (1, 2, 3)
_AMPLITUDE = 0.12  # of positions
_SHARPNESS = 2.2  # of queries and keys: large enough that each head attends to one token only
_NOTE = 0.17  # gain of the copies
_MATCH = 1.5
_COPY = 0.6


@torch.no_grad()
def initialise_induction_heads(model: GPT2LMHeadModel) -> None:
    """Writes the heads into an untrained model whose width holds positions and three copies."""
    config, transformer = model.config, model.transformer
    layers: Any = transformer.h
    head = config.n_embd // config.n_head
    assert config.n_embd >= (1 + len(DISTANCES)) * head
    rates = torch.rand(head // 2) * math.pi
    angles = torch.arange(config.n_positions)[:, None] * rates
    transformer.wpe.weight.zero_()
    transformer.wpe.weight[:, :head] = _AMPLITUDE * torch.cat([angles.sin(), angles.cos()], dim=1)
    transformer.wte.weight[:, :head] = 0
    digest = _directions(config.n_embd, head)  # of a word, the same for each copy
    for index, distance in enumerate(DISTANCES):
        first = _Head(layers[0].attn, index)
        first.set_query_key(_rotated_back(distance * rates), torch.eye(head), _SHARPNESS)
        first.set_value_output(digest, _into(config.n_embd, head, index), _NOTE)
    for index in range(len(DISTANCES) - 1):
        second = _Head(layers[1].attn, index)
        query, key = (_into(config.n_embd, head, place).T for place in (index, index + 1))
        second.set_query_key(query, key, _MATCH)
        copied = _directions(config.n_embd, head)
        second.set_value_output(copied, copied.T, _COPY)


class _Head:
    """One head of a layer, its four matrices."""

    def __init__(self, attention: Any, index: int) -> None:
        width, size = attention.embed_dim, attention.head_dim
        own = slice(index * size, (index + 1) * size)
        blocks = attention.c_attn.weight.split(width, dim=1)  # queries, keys, values: (D, D) each
        self._query, self._key, self._value = (block[:, own] for block in blocks)
        self._out = attention.c_proj.weight[own]

    def set_query_key(self, query: torch.Tensor, key: torch.Tensor, gain: float) -> None:
        """Sets the query and key matrices (≤ D, K), scaled by `gain`."""
        for weight, matrix in ((self._query, query), (self._key, key)):
            weight.zero_()
            weight[: len(matrix)] = gain * matrix

    def set_value_output(self, value: torch.Tensor, out: torch.Tensor, gain: float) -> None:
        """Sets value (D, K) and output (K, D), the output scaled by `gain`."""
        self._value.copy_(value)
        self._out.copy_(gain * out)


def _rotated_back(angles: torch.Tensor) -> torch.Tensor:
    """(K, K) that makes sin a and cos a into those of a minus `angles` (K / 2,), as row · matrix.

    A query rotated by -d matches the key d tokens before best, at any position: the sum of
    cos(rate · distance) over random rates peaks at zero alone.
    """
    sines, cosines = angles.sin().diag(), angles.cos().diag()
    return torch.cat([torch.cat([cosines, sines], dim=1), torch.cat([-sines, cosines], dim=1)])


def _directions(width: int, head: int) -> torch.Tensor:
    """(D, K) random and orthogonal, zero in the position dimensions."""
    directions = torch.zeros(width, head)
    directions[head:] = torch.linalg.qr(torch.randn(width - head, head)).Q
    return directions


def _into(width: int, head: int, note: int) -> torch.Tensor:
    """(K, D) that writes copy `note` into its dimensions; transposed, it reads it."""
    return torch.eye(width)[(1 + note) * head : (2 + note) * head]


MODULE = "examples.gpt.train"
OUTPUT = checkpoint("example-gpt")
END_OF_TEXT = "<|endoftext|>"
POSITIONS = 256
_VOCABULARY = 1280
_TOKENIZER_TEXTS = 20_000
_ROW_TOKENS = 96  # of a training row, at most
_BATCH = 32
_CAPTION_SHARE = 0.3  # of sentences
_LONGEST_PARAGRAPH = 6  # sentences
_INITIAL_RANGE = 0.06  # GPT-2's 0.02 is for a width of 768
IGNORED = -100  # labels that cross entropy skips
_PROGRESS_EVERY = 150  # steps


@dataclass(frozen=True)
class Stage:
    """The data of a training stage: families of lessons, and their share of the rows."""

    families: tuple[Family, ...]
    lesson_share: float
    only_answerable: bool
    """Whether answers that do not follow from the context are excluded from the loss."""


# Lookup is trained first and alone: in the full mixture its gradient signal is too weak.
FIRST = Stage(FRESH, lesson_share=1.0, only_answerable=True)
SECOND = Stage(FAMILIES, lesson_share=0.75, only_answerable=False)


def main() -> None:
    """Trains, saves, scores and describes the checkpoint."""
    arguments = training_flags(__doc__, OUTPUT, 1100).parse_args()
    folder = start(arguments)
    tokenizer = build_tokenizer(folder, arguments.seed)
    model = build_model(tokenizer)
    first = Recipe(arguments.steps // 3, arguments.seed, _BATCH, peak_lr=2e-3)
    second = Recipe(arguments.steps - first.steps, arguments.seed, _BATCH, peak_lr=1.5e-3)
    minutes = train(model, LanguageModelling(model, tokenizer, FIRST, arguments.seed).loss, first)
    minutes += train(
        model, LanguageModelling(model, tokenizer, SECOND, arguments.seed).loss, second
    )
    save_half(model, folder)
    command = f"python -m {MODULE} --steps {arguments.steps} --seed {arguments.seed}"
    rows = arguments.steps * _BATCH
    print(write_card(folder, command=command, minutes=f"{minutes:.0f}", rows=rows))


def build_tokenizer(folder: Path, seed: int) -> GPT2Tokenizer:
    """A byte-level BPE in GPT-2's format, learnt from both kinds of text, saved into the folder."""
    learner = ByteLevelBPETokenizer()
    world_texts = islice(paragraphs(seed), _TOKENIZER_TEXTS)
    lesson_texts = ("".join(lesson.pieces()) for lesson in islice(lessons(seed), _TOKENIZER_TEXTS))
    learner.train_from_iterator(
        (text for texts in (world_texts, lesson_texts) for text in texts),
        vocab_size=_VOCABULARY,
        special_tokens=[END_OF_TEXT],
        show_progress=False,
    )
    vocabulary, merges = learner.save_model(str(folder))
    tokenizer = GPT2Tokenizer(
        vocab=vocabulary, merges=merges, pad_token=END_OF_TEXT, model_max_length=POSITIONS
    )
    tokenizer.save_pretrained(folder)
    return tokenizer


def build_model(tokenizer: GPT2Tokenizer) -> GPT2LMHeadModel:
    """An untrained GPT-2 of four layers with initialised induction heads."""
    end = tokenizer.eos_token_id
    config = GPT2Config(
        vocab_size=len(tokenizer),
        n_positions=POSITIONS,
        n_embd=128,
        n_layer=4,
        n_head=4,
        initializer_range=_INITIAL_RANGE,
        bos_token_id=end,
        eos_token_id=end,
        pad_token_id=end,
        resid_pdrop=0.0,  # no dropout: every row is new
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        # three times as fast under autocast on a CPU
        attn_implementation="eager",  # type: ignore[call-arg]  # a field of every configuration
    )
    model = GPT2LMHeadModel(config)
    initialise_induction_heads(model)
    generation = model.generation_config
    generation._from_model_config = (
        False  # without it, loaders treat the file as a copy of config.json
    )
    generation.bos_token_id = generation.eos_token_id = generation.pad_token_id = end
    return model


def paragraphs(seed: int) -> Iterator[str]:
    """Endless paragraphs of training sentences and captions, the same ones for the same seed."""
    rng = Random(f"paragraphs {seed}")
    spoken = (pair.english for pair in sentences("train", sys.maxsize, seed))
    seen = (caption(scene) for scene in scenes("train", sys.maxsize, seed))
    while True:
        count = rng.randint(1, _LONGEST_PARAGRAPH)
        source = seen if rng.random() < _CAPTION_SHARE else spoken
        joint = "\n" if source is seen else " "
        yield joint.join(islice(source, count))


class LanguageModelling:
    """The loss of freshly drawn rows: all tokens of a paragraph, only answers of a lesson."""

    def __init__(
        self, model: GPT2LMHeadModel, tokenizer: GPT2Tokenizer, stage: Stage, seed: int
    ) -> None:
        self._model = model
        self._end = tokenizer.eos_token_id
        self._paragraphs = paragraphs(seed + 1)
        self._lessons = lessons(seed + 1, stage.families)
        self._lessons_per_batch = int(stage.lesson_share * _BATCH)
        self._only_answerable = stage.only_answerable
        self._tokenizer = tokenizer

    def loss(self, step: int) -> torch.Tensor:
        """Mean cross entropy over the next batch.

        Rows begin at random positions, so that all position embeddings are trained.
        """
        rows = [self._lesson(next(self._lessons)) for _ in range(self._lessons_per_batch)]
        rows += [
            self._paragraph(next(self._paragraphs)) for _ in range(_BATCH - self._lessons_per_batch)
        ]
        tokens = _padded([ids for ids, _ in rows], self._end)
        labels = _padded([labels for _, labels in rows], IGNORED)
        start = torch.randint(0, POSITIONS - tokens.shape[1] + 1, (len(rows), 1))
        positions = start + torch.arange(tokens.shape[1])
        if step % _PROGRESS_EVERY == 0:
            self._print_accuracy()
        hidden = self._model.transformer(input_ids=tokens, position_ids=positions).last_hidden_state
        return label_loss(hidden, self._model.lm_head, labels)

    def _lesson(self, lesson: Lesson) -> tuple[list[int], list[int]]:
        """Token ids, and labels for the answers."""
        ids: list[int] = []
        labels: list[int] = []
        for index, new in enumerate(self._tokenizer(list(lesson.pieces()))["input_ids"]):
            is_answer = index % 2 == 1
            is_learnt = is_answer and (lesson.answerable[index // 2] or not self._only_answerable)
            ids += new
            labels += new if is_learnt else [IGNORED] * len(new)
        return ids[:_ROW_TOKENS], labels[:_ROW_TOKENS]

    def _paragraph(self, text: str) -> tuple[list[int], list[int]]:
        """Token ids twice. The end token also begins them, for continuations of an empty prompt."""
        ids = [self._end, *self._tokenizer(text)["input_ids"], self._end][:_ROW_TOKENS]
        return ids, ids

    def _print_accuracy(self) -> None:
        """Prints the few-shot accuracy on withheld bindings of each family."""
        complete = answerer_of(self._model, self._tokenizer)
        shares = {
            family.name: [
                round(accuracy(complete, family, shots, 50, seed=1), 2) for shots in (0, 4)
            ]
            for family in FRESH
        }
        print(shares, flush=True)


def label_loss(hidden: torch.Tensor, head: nn.Module, labels: torch.Tensor) -> torch.Tensor:
    """Mean cross entropy of labels (B, T), each predicted at the position before it."""
    following = labels[:, 1:]
    is_learnt = following != IGNORED  # logits are computed for these places only
    logits = head(hidden[:, :-1][is_learnt])
    return nn.functional.cross_entropy(logits.float(), following[is_learnt])


def _padded(rows: list[list[int]], value: int) -> torch.Tensor:
    tensors = [torch.tensor(row) for row in rows]
    return nn.utils.rnn.pad_sequence(tensors, batch_first=True, padding_value=value)


if __name__ == "__main__":
    main()
