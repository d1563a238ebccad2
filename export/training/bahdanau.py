"""The translator of Bahdanau, Cho and Bengio 2015 (arXiv 1409.0473), and its training.

`triptych train translate --architecture bahdanau` runs `train`, resumable like `translation.py`.
Words are the units, as in the paper (§4.1), so that a column of the alignment is a word. `reader`
and `translator` are a trained folder as a function.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from torch import Tensor, nn

from export.graphs.source_model import SourceModel
from export.models.recurrent.bahdanau import Bahdanau, read_config
from export.parity.torch_runner import TorchRunner
from export.pipeline.manifest import Request, build_manifest
from export.training.functions import Read, Reading, Translate
from export.training.marian import Example, batches
from export.training.resumable_training import (
    HeldOutScore,
    Optimisation,
    Progress,
    TrainingFolder,
    adamw,
    endless,
    optimise,
)
from export.training.translation import ParallelText, Recipe, score, write_translator_card
from inference.engine.engine import decode
from inference.engine.request import EngineRequest
from inference.errors import SetupError
from inference.generation import Hypothesis

END, UNKNOWN, START, PADDING = range(4)
_SPECIAL = ["</s>", "<unk>", "<s>", "<pad>"]
MAX_POSITIONS = 64
_PEAK_LR = 2e-3
_DROPOUT = 0.1
_IGNORED = -100
NETWORK = {
    "model_type": "bahdanau",
    "architectures": ["Bahdanau"],
    "embedding_size": 96,
    "hidden_size": 192,
    "attention_size": 96,
    "readout_size": 96,
}


@dataclass(frozen=True)
class Batch:
    """Padded token ids: sources (B, S) with their lengths (B,), targets (B, T)."""

    source: Tensor
    lengths: Tensor
    target: Tensor


Decode = Callable[[list[str]], list[Hypothesis]]
Predict = Callable[[Batch, float], Tensor]
"""Batch, dropout → logits (B, T, V), where every word is predicted after the true ones."""


def word_level(texts: Iterable[str], marks: str, most: int | None = None) -> Tokenizer:
    """A tokenizer of whole words, the frequent ones first; others are unknown.

    Args:
        marks: Regular expression of the characters that are tokens of their own.
        most: Words in the vocabulary; all by default.
    """
    pieces = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Metaspace(),
            pre_tokenizers.Split(Regex("'"), "merged_with_previous"),
            pre_tokenizers.Split(Regex(marks), "isolated"),
        ]
    )
    normalizer = normalizers.Sequence(
        [normalizers.NFC(), normalizers.Replace("’", "'"), normalizers.Strip()]
    )
    counts = Counter(
        piece
        for text in texts
        for piece, _ in pieces.pre_tokenize_str(normalizer.normalize_str(text))
    )
    ranked = sorted(counts, key=lambda piece: (-counts[piece], piece))[:most]
    names = {name: number for number, name in enumerate([*_SPECIAL, *ranked])}
    tokenizer = Tokenizer(models.WordLevel(names, unk_token="<unk>"))
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pieces
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", END)]
    )
    tokenizer.add_special_tokens(_SPECIAL)
    return tokenizer


def write_settings(
    folder: Path,
    tokenizer: Tokenizer,
    network: Mapping[str, Any],
    languages: tuple[str, str] = ("en", "fr"),
) -> None:
    """Everything of a checkpoint but its weights.

    Args:
        network: Its part of `config.json`, without the sizes that the data decide.
        languages: Codes of source and target.
    """
    config = {
        **network,
        "vocab_size": tokenizer.get_vocab_size(),
        "max_positions": MAX_POSITIONS,
        "dtype": "float16",
    }
    generation = {
        "decoder_start_token_id": START,
        "eos_token_id": END,
        "pad_token_id": PADDING,
        "bad_words_ids": [[UNKNOWN], [START], [PADDING]],
        "forced_eos_token_id": END,
        "max_length": MAX_POSITIONS,
        "num_beams": 4,
    }
    names = {
        "source_lang": languages[0],
        "target_lang": languages[1],
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "bos_token": "<s>",
        "pad_token": "<pad>",
        "model_max_length": MAX_POSITIONS,
    }
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    for file, values in (
        ("config.json", config),
        ("generation_config.json", generation),
        ("tokenizer_config.json", names),
    ):
        (folder / file).write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")


def initialise(model: nn.Module) -> None:
    """As the paper does (§B.1): orthogonal recurrences, small Gaussians elsewhere, zero biases."""
    for name, weight in model.named_parameters():
        if weight.ndim < 2:
            nn.init.zeros_(weight)
        elif ".gates." in name or ".candidate." in name:
            for square in weight.split(weight.shape[1]):
                nn.init.orthogonal_(square)
        elif ".words." in name:
            nn.init.normal_(weight, std=0.1)
        else:
            nn.init.xavier_uniform_(weight)


def batch_of(sources: list[list[int]], targets: list[list[int]]) -> Batch:
    """A batch of token ids."""
    lengths = torch.tensor([len(each) for each in sources], dtype=torch.int32)
    return Batch(_pad(sources, PADDING), lengths, _pad(targets, _IGNORED))


def batch_loss(logits: Predict, batch: Batch) -> Tensor:
    """Mean cross entropy of a batch's target words, with dropout."""
    return nn.functional.cross_entropy(
        logits(batch, _DROPOUT).flatten(0, 1), batch.target.flatten(), ignore_index=_IGNORED
    )


def optimisation(model: nn.Module, steps: int) -> Optimisation:
    """Adam with a warm-up and a cosine decay instead of the paper's Adadelta."""
    return adamw(model.parameters(), steps, _PEAK_LR, fused=True)


def _pad(rows: list[list[int]], filler: int) -> Tensor:
    lines = [torch.tensor(row) for row in rows]
    return nn.utils.rnn.pad_sequence(lines, batch_first=True, padding_value=filler)


def teacher_forced(model: Bahdanau, batch: Batch, dropout: float) -> Tensor:
    """Logits (B, T, V) where every word is predicted after the true ones."""
    decoder = model.decoder
    annotations = model.encoder(batch.source, batch.lengths)
    annotations = nn.functional.dropout(annotations, dropout)
    keys = decoder.attention.project_keys(annotations)
    before = nn.functional.pad(batch.target[:, :-1], (1, 0), value=START)
    words = decoder.words(before.clamp(min=0))  # ignored places are padding behind the end
    (state,), states, contexts = decoder.initial_states(annotations), [], []
    for place in range(words.shape[1]):
        state, context, _ = decoder.advance(
            words[:, place], state, annotations, keys, batch.lengths
        )
        states.append(state)
        contexts.append(context)
    return decoder.logits(words, torch.stack(states, 1), torch.stack(contexts, 1))


def save(model: nn.Module, folder: Path) -> None:
    """The weights in half precision, under our own names."""
    weights = {name: value.half().contiguous() for name, value in model.state_dict().items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def decoder(folder: Path, **rules: object) -> tuple[Tokenizer, Decode]:
    """The folder's tokenizer, and its model as a function from sentences to best hypotheses.

    Decodes with the serving engine over PyTorch graphs.

    Args:
        rules: Generation defaults to replace.
    """
    model = SourceModel.open(folder)
    graphs = model.graphs()
    manifest, _ = build_manifest(Request(folder.name), 1, model, graphs)
    assert manifest.generation is not None
    generation = manifest.generation.model_copy(update=rules)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    runner = TorchRunner(graphs, manifest)

    def decode_texts(texts: list[str]) -> list[Hypothesis]:
        ids = [np.array(line.ids) for line in tokenizer.encode_batch(texts)]
        answers = decode(runner, [EngineRequest(generation, source_ids=each) for each in ids])
        return [answer.hypotheses[0] for answer in answers]

    return tokenizer, decode_texts


def reader(folder: Path, beams: int) -> Read:
    """The folder's model as a function from sentences to translations with alignments."""
    tokenizer, decoded = decoder(folder, num_beams=beams, return_alignment=True)

    def read(texts: list[str]) -> list[Reading]:
        return [_reading(best, tokenizer) for best in decoded(texts)]

    return read


def _reading(best: Hypothesis, tokenizer: Tokenizer) -> Reading:
    assert best.alignment is not None
    return Reading(tokenizer.decode(list(best.token_ids)), best.alignment)


def translator(folder: Path, beams: int) -> Translate:
    """The folder's model as a function from sentences to translations."""
    tokenizer, decoded = decoder(folder, num_beams=beams)
    return lambda texts: [tokenizer.decode(list(best.token_ids)) for best in decoded(texts)]


_MARKS = r"[^\w\s'▁]"
"""Characters that are words of their own; ▁ stands for a space."""


def train(
    folder: TrainingFolder, text: ParallelText, recipe: Recipe, progress: Progress
) -> HeldOutScore:
    """Trains, or continues, and writes the checkpoint and its card.

    Raises:
        SetupError: Every line is too long.
    """
    kept, held = text.split(recipe.held_out, recipe.seed)
    tokenizer = word_level([*kept.sources, *kept.targets], _MARKS, 2 * recipe.pieces)
    write_settings(folder.folder, tokenizer, NETWORK, recipe.languages)
    config = json.loads((folder.folder / "config.json").read_text(encoding="utf-8"))
    torch.manual_seed(recipe.seed)
    model = Bahdanau(read_config(config))
    initialise(model)
    logits = partial(teacher_forced, model)
    optimise(
        model,
        optimisation(model, recipe.steps),
        endless(partial(batches, encode(kept, tokenizer)), recipe.seed),
        lambda batch: batch_loss(
            logits, batch_of([each.source for each in batch], [each.target for each in batch])
        ),
        recipe.steps,
        folder,
        progress,
    )
    save(model, folder.folder)
    folder.finish()
    found = score(translator(folder.folder, 1), held)
    parameters = sum(weight.numel() for weight in model.parameters())
    write_translator_card(folder.folder, "recurrent", parameters, len(kept.sources), found, recipe)
    return found


def encode(text: ParallelText, tokenizer: Tokenizer) -> list[Example]:
    """The pairs that fit into the network's positions.

    Raises:
        SetupError: None of them does.
    """
    sides = [
        [line.ids for line in tokenizer.encode_batch(lines)]
        for lines in (text.sources, text.targets)
    ]
    examples = [Example(*pair) for pair in zip(*sides, strict=True)]
    fitting = [one for one in examples if max(len(one.source), len(one.target)) <= MAX_POSITIONS]
    if not fitting:
        raise SetupError(f"every line has more than {MAX_POSITIONS - 1} words")
    return fitting
