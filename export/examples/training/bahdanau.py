"""Trains `example-en-fr`, a small translator of the gazette with the attention of its paper.

Words are the units, as in the paper (§4.1), so that a column of the alignment is a word. Attention
is learnt from translations alone: the grammar's own alignment measures it and never trains it.

    python -m export.examples.training.bahdanau
"""

import argparse
import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from torch import Tensor, nn

from export.examples.texts.gazette import GazettePair, sentences
from export.examples.training.gazette_translator import CHECKPOINT, write_card
from export.models.bahdanau import Bahdanau, read_config

END, UNKNOWN, START, PADDING = range(4)
_SPECIAL = ["</s>", "<unk>", "<s>", "<pad>"]
_VOCABULARY_SENTENCES = 100_000
MAX_POSITIONS = 64
_BATCH = 64
_CHUNK = 6400  # sentences sorted by length together
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


Predict = Callable[[Batch, float], Tensor]
"""Batch, dropout → logits (B, T, V), where every word is predicted after the true ones."""


def word_tokenizer(pairs: list[GazettePair]) -> Tokenizer:
    """A tokenizer of all words of both languages; elided words and marks are tokens."""
    return word_level([text for pair in pairs for text in (pair.source, pair.target)], "[.,]")


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


def batches(tokenizer: Tokenizer, seed: int) -> Iterator[Batch]:
    """Endless batches of new sentences of similar lengths."""
    rng = Random(seed)
    while True:
        pairs = list(sentences("train", _CHUNK, rng.randrange(2**32)))
        sources = [line.ids for line in tokenizer.encode_batch([p.source for p in pairs])]
        targets = [line.ids for line in tokenizer.encode_batch([p.target for p in pairs])]
        order = sorted(range(_CHUNK), key=lambda i: (len(sources[i]), len(targets[i])))
        groups = [order[start : start + _BATCH] for start in range(0, _CHUNK, _BATCH)]
        rng.shuffle(groups)
        for group in groups:
            yield batch_of([sources[i] for i in group], [targets[i] for i in group])


def batch_of(sources: list[list[int]], targets: list[list[int]]) -> Batch:
    """A batch of token ids."""
    lengths = torch.tensor([len(each) for each in sources], dtype=torch.int32)
    return Batch(_padded(sources, PADDING), lengths, _padded(targets, _IGNORED))


def batch_loss(logits: Predict, batch: Batch) -> Tensor:
    """Mean cross entropy of a batch's target words, with dropout."""
    return nn.functional.cross_entropy(
        logits(batch, _DROPOUT).flatten(0, 1), batch.target.flatten(), ignore_index=_IGNORED
    )


def optimisation(
    model: nn.Module, steps: int
) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
    """Adam with a warm-up and a cosine decay instead of the paper's Adadelta."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=_PEAK_LR, betas=(0.9, 0.98), fused=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, _PEAK_LR, steps, pct_start=min(0.3, 200 / steps), cycle_momentum=False
    )
    return optimizer, schedule


def _padded(rows: list[list[int]], filler: int) -> Tensor:
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


def train_translator(
    model: nn.Module, logits: Predict, tokenizer: Tokenizer, steps: int, seed: int
) -> float:
    """Trains in place on freshly generated sentences and returns the minutes it took.

    Gradients are clipped at 1, as in the paper.
    """
    optimizer, schedule = optimisation(model, steps)
    stream = batches(tokenizer, seed)
    model.train()
    start, recent = time.perf_counter(), []
    for step in range(1, steps + 1):
        loss = batch_loss(logits, next(stream))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        recent.append(loss.item())
        if step % 50 == 0 or step == steps:
            minutes, mean = (time.perf_counter() - start) / 60, sum(recent) / len(recent)
            print(f"step {step}/{steps}  loss {mean:.4f}  {minutes:.1f} min", flush=True)
            recent.clear()
    model.eval()
    return (time.perf_counter() - start) / 60


def save(model: nn.Module, folder: Path) -> None:
    """The weights in half precision, under our own names."""
    weights = {name: value.half().contiguous() for name, value in model.state_dict().items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def main() -> None:
    """Trains, saves, measures what was saved and writes the model card."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=2400)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path, default=CHECKPOINT)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    tokenizer = word_tokenizer(list(sentences("train", _VOCABULARY_SENTENCES, options.seed)))
    write_settings(options.output, tokenizer, NETWORK)
    model = Bahdanau(read_config(json.loads((options.output / "config.json").read_text())))
    initialise(model)
    logits = partial(teacher_forced, model)
    minutes = train_translator(model, logits, tokenizer, options.steps, options.seed)
    save(model, options.output)
    print(f"trained in {minutes:.1f} minutes, saved in {options.output}; measuring", flush=True)
    command = f"python -m export.examples.training.bahdanau --steps {options.steps}"
    print(write_card(options.output, command=command, minutes=round(minutes), seed=options.seed))


if __name__ == "__main__":
    main()
