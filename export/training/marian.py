"""A small MarianMT translator: its vocabularies, network, optimisation, and the trained folder as a
function.

Written with `transformers`, like published checkpoints, so that our loader is tested on the same
folder layout. The layout follows Helsinki-NLP/opus-mt-es-en: two sentencepiece models over one
shared vocabulary, `</s>` first, `<pad>` last and starting the decoder, post-norm layers, swish,
scaled and tied embeddings, sinusoidal positions.
"""

import io
import json
import warnings
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np
import sentencepiece
import torch
from transformers import GenerationConfig, MarianConfig, MarianMTModel, MarianTokenizer

from export.training.functions import Translate
from export.training.resumable_training import Optimisation, adamw

MAX_POSITIONS = 128
_MAX_LENGTH = 96  # tokens generated at most
_BATCH_TOKENS = 1500  # target tokens per step
_PEAK_LR = 1.5e-3
CHUNK = 20_000
"""Sentences sorted by length together."""


@dataclass(frozen=True)
class Example:
    """Token ids of a pair, both sides ending in `</s>`."""

    source: list[int]
    target: list[int]


def train_pieces(texts: list[str], model: Path, pieces: int) -> None:
    """Writes a sentencepiece unigram model; digits are pieces of their own, so numbers copy."""
    written = io.BytesIO()  # file names would be stored in the model
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts),
        model_writer=written,
        vocab_size=pieces,
        character_coverage=1.0,
        hard_vocab_limit=False,
        split_digits=True,
        bos_id=-1,
        num_threads=1,
        minloglevel=2,
    )
    model.write_bytes(written.getvalue())


def shared_vocabulary(models: list[Path], corpora: list[list[str]]) -> dict[str, int]:
    """Both models' pieces, the frequent ones first, between Marian's special tokens."""
    counts: Counter[str] = Counter()
    pieces: set[str] = set()
    for model, texts in zip(models, corpora, strict=True):
        processor = sentencepiece.SentencePieceProcessor(model_file=str(model))
        ordinary = [i for i in range(len(processor)) if not processor.is_control(i)]
        pieces.update(processor.id_to_piece(i) for i in ordinary if not processor.is_unknown(i))
        for tokens in processor.encode(texts, out_type=str):
            counts.update(tokens)
    ranked = sorted(pieces, key=lambda piece: (-counts[piece], piece))
    names = ["</s>", "<unk>", *ranked, "<pad>"]
    return {name: number for number, name in enumerate(names)}


def build_tokenizer(
    folder: Path, corpora: list[list[str]], languages: tuple[str, str], pieces: int
) -> MarianTokenizer:
    """Trains both sentencepiece models and saves the tokenizer's files.

    Args:
        corpora: Source and target texts.
        languages: Their codes.
        pieces: Of each language, at most.
    """
    folder.mkdir(parents=True, exist_ok=True)
    models = [folder / "source.spm", folder / "target.spm"]
    for texts, model in zip(corpora, models, strict=True):
        train_pieces(texts, model, pieces)
    vocabulary = shared_vocabulary(models, corpora)
    (folder / "vocab.json").write_text(
        json.dumps(vocabulary, ensure_ascii=False, indent=0), encoding="utf-8"
    )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Recommended: pip install sacremoses")
        tokenizer = MarianTokenizer(
            str(models[0]),
            str(models[1]),
            str(folder / "vocab.json"),
            source_lang=languages[0],
            target_lang=languages[1],
            model_max_length=MAX_POSITIONS,
        )
    tokenizer.save_pretrained(folder)
    return tokenizer


def encode(sources: list[str], targets: list[str], tokenizer: MarianTokenizer) -> list[Example]:
    """Pairs of texts as token ids, through the tokenizer's own files."""
    vocabulary: dict[str, int] = tokenizer.encoder  # type: ignore[assignment]  # typed as a union
    unknown = tokenizer.unk_token_id

    def ids(texts: list[str], processor: sentencepiece.SentencePieceProcessor) -> list[list[int]]:
        return [
            [*(vocabulary.get(piece, unknown) for piece in pieces), tokenizer.eos_token_id]
            for pieces in processor.encode(texts, out_type=str)
        ]

    read = ids(sources, tokenizer.spm_source)
    written = ids(targets, tokenizer.spm_target)
    return [Example(*sides) for sides in zip(read, written, strict=True)]


def batches(examples: list[Example], seed: int) -> list[list[Example]]:
    """Batches of about `_BATCH_TOKENS` target tokens, of similar lengths, in shuffled order."""
    made: list[list[Example]] = []
    for start in range(0, len(examples), CHUNK):
        chunk = sorted(examples[start : start + CHUNK], key=lambda each: len(each.target))
        batch: list[Example] = []
        for example in chunk:
            if (len(batch) + 1) * len(example.target) > _BATCH_TOKENS:
                made.append(batch)
                batch = []
            batch.append(example)
        made.append(batch)
    Random(seed).shuffle(made)
    return made


def padded(rows: list[list[int]], filler: int) -> torch.Tensor:
    """The rows as one (B, T) tensor, filled on the right."""
    width = max(len(row) for row in rows)
    return torch.from_numpy(np.array([row + [filler] * (width - len(row)) for row in rows]))


def build_model(tokenizer: MarianTokenizer, dropout: float = 0.0) -> MarianMTModel:
    """A MarianMT network of opus-mt's shape, small: heads of 32, three layers a side.

    Args:
        dropout: None by default: where no sentence repeats, there is nothing to overfit.
    """
    pad = tokenizer.pad_token_id
    config = MarianConfig(
        vocab_size=len(tokenizer.encoder),
        d_model=128,
        encoder_layers=3,
        decoder_layers=3,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=512,
        decoder_ffn_dim=512,
        max_position_embeddings=MAX_POSITIONS,
        activation_function="swish",
        dropout=dropout,
        scale_embedding=True,
        init_std=0.02,
        pad_token_id=pad,
        eos_token_id=tokenizer.eos_token_id,
        decoder_start_token_id=pad,
        forced_eos_token_id=tokenizer.eos_token_id,
    )
    config.normalize_before = False
    config.normalize_embedding = False
    config.static_position_embeddings = True
    # On a CPU the eager form trains twice as fast as the fused one, whose backward pass is slow.
    return MarianMTModel._from_config(config, attn_implementation="eager")


def generation_defaults(tokenizer: MarianTokenizer) -> GenerationConfig:
    """Generation defaults of opus-mt checkpoints: beam 4, never `<pad>`, `</s>` at the limit."""
    pad, eos = tokenizer.pad_token_id, tokenizer.eos_token_id
    return GenerationConfig(
        num_beams=4,
        max_length=_MAX_LENGTH,
        bad_words_ids=[[pad]],
        decoder_start_token_id=pad,
        pad_token_id=pad,
        eos_token_id=eos,
        forced_eos_token_id=eos,
        renormalize_logits=True,
    )


def optimisation(model: MarianMTModel, steps: int) -> Optimisation:
    """AdamW, a linear warm-up and a cosine decay."""
    return adamw(model.parameters(), steps, _PEAK_LR, fused=True)


def batch_loss(model: MarianMTModel, batch: list[Example], pad: int) -> torch.Tensor:
    """Mean cross entropy of a batch's target tokens; bfloat16 where autocast allows it."""
    source = padded([example.source for example in batch], pad)
    labels = padded([example.target for example in batch], -100)
    with torch.autocast("cpu", torch.bfloat16):
        return model(input_ids=source, attention_mask=source.ne(pad).long(), labels=labels).loss


_BATCH = 64


def translator(folder: Path, beams: int) -> Translate:
    """The folder's model in float32 as a function from sentences to translations."""
    with warnings.catch_warnings():
        # The sentences need no sacremoses normalisation of quotation marks.
        warnings.filterwarnings("ignore", "Recommended: pip install sacremoses")
        tokenizer = MarianTokenizer.from_pretrained(folder)
    model = MarianMTModel.from_pretrained(folder, dtype=torch.float32).eval()

    @torch.inference_mode()
    def translate(texts: list[str]) -> list[str]:
        order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
        translations = [""] * len(texts)
        for start in range(0, len(order), _BATCH):
            rows = order[start : start + _BATCH]
            inputs = tokenizer([texts[i] for i in rows], return_tensors="pt", padding=True)
            tokens = model.generate(**inputs, num_beams=beams)
            decoded = tokenizer.batch_decode(tokens, skip_special_tokens=True)
            for i, text in zip(rows, decoded, strict=True):
                translations[i] = text
        return translations

    return translate
