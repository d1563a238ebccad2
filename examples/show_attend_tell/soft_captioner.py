"""The checkpoint folder of Show, Attend and Tell: writing, reading, and captioning in PyTorch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from PIL import Image
from safetensors.torch import save_file
from torch import nn
from transformers import GPT2Tokenizer
from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

from examples.scenes.rendering import SIDE
from examples.scenes.scores import ObserveFunction, TokenMap
from examples.training.loop import pixel_tensor
from export.checkpoint.checkpoint import WEIGHTS
from export.graphs.source_model import SourceModel
from export.models.captioners.show_attend_tell import ARCHITECTURE, ShowAttendTell, read_config
from export.training.captions import IGNORED
from export.training.functions import CaptionFunction, in_batches

MAX_TOKENS = 32


def start_folder(folder: Path, tokenizer: GPT2Tokenizer) -> ShowAttendTell:
    """Writes all but the weights, and returns an untrained network of these settings."""
    folder.mkdir(parents=True, exist_ok=True)
    end = tokenizer.eos_token_id
    special = {"bos_token_id": end, "eos_token_id": end, "pad_token_id": end}
    config = {
        "model_type": ARCHITECTURE.name,
        "architectures": ["ShowAttendTell"],
        "dtype": "float16",
        "image_size": SIDE,
        "channels": [32, 48, 96, 96, 160, 160, 160],
        "strides": [2, 1, 2, 1, 2, 1, 1],
        "vocab_size": len(tokenizer),
        "embedding_size": 128,
        "hidden_size": 256,
        "attention_size": 128,
        "max_tokens": MAX_TOKENS,
        **special,
    }
    rules = {"decoder_start_token_id": end, "max_length": MAX_TOKENS, "num_beams": 1, **special}
    for file, values in (("config.json", config), ("generation_config.json", rules)):
        text = json.dumps(values, indent=2) + "\n"
        (folder / file).write_text(text, encoding="utf-8")
    ViTImageProcessorPil(size={"height": SIDE, "width": SIDE}).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return ShowAttendTell(read_config(config))


def read_folder(folder: Path) -> ShowAttendTell:
    """The trained network, in float32."""
    network = SourceModel.open(folder).network
    assert isinstance(network, ShowAttendTell)
    return network


def save_weights(network: ShowAttendTell, folder: Path) -> None:
    """Writes the weights in float16."""
    halves = {name: value.half().contiguous() for name, value in network.state_dict().items()}
    save_file(halves, folder / WEIGHTS, metadata={"format": "pt"})


def observer(folder: Path, batch: int = 50) -> ObserveFunction:
    """A function from pictures to greedy words, each with its attention map."""
    network, tokenizer = read_folder(folder), GPT2Tokenizer.from_pretrained(folder)
    processor = ViTImageProcessorPil.from_pretrained(folder)

    def observe(pictures: list[Image.Image]) -> list[list[TokenMap]]:
        pixels = processor(pictures, return_tensors="pt").pixel_values
        tokens, maps = greedy(network, pixels, tokenizer.eos_token_id)
        return [_token_maps(tokenizer, *pair) for pair in zip(tokens.tolist(), maps, strict=True)]

    return in_batches(observe, batch)


@torch.inference_mode()
def greedy(
    network: ShowAttendTell, pixels: torch.Tensor, end: int
) -> tuple[torch.Tensor, NDArray[Any]]:
    """The likeliest tokens (B, T), the end token and what follows it included, and maps.

    Maps are (B, T, rows, columns): the attention at the step of each token.
    """
    annotations = network.encoder(pixels)
    keys = network.decoder.attention.project_keys(annotations)
    states = network.decoder.initial_states(annotations)
    token, tokens, maps = torch.full((len(pixels),), end), [], []
    for _ in range(MAX_TOKENS - 1):
        logits, states, attention = network.decoder(token, states, annotations, keys)
        token = logits.argmax(dim=-1)
        tokens.append(token)
        maps.append(attention.unflatten(1, network.encoder.sizes.grid))
    return torch.stack(tokens, dim=1), torch.stack(maps, dim=1).numpy()


def text(tokens: list[TokenMap]) -> str:
    """The words joined into one text."""
    return "".join(token.word for token in tokens)


def captions_of(observe: ObserveFunction) -> CaptionFunction:
    """The texts of what was observed."""
    return lambda pictures: [text(tokens) for tokens in observe(pictures)]


def fast_pixels(pictures: list[Image.Image]) -> torch.Tensor:
    """(B, 3, side, side) as the saved image recipe has them, laid out for fast convolutions."""
    prepared = pixel_tensor(pictures, [0.5] * 3, [0.5] * 3)
    return prepared.contiguous(memory_format=torch.channels_last)


def word_entropy(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Mean cross entropy of logits (B, T, V) over the labels (B, T) that count."""
    return nn.functional.cross_entropy(
        logits.flatten(0, 1).float(), labels.flatten(), ignore_index=IGNORED
    )


def _token_maps(tokenizer: GPT2Tokenizer, tokens: list[int], maps: NDArray[Any]) -> list[TokenMap]:
    """Words up to the end token; a word keeps the blank in front of it."""
    end = tokenizer.eos_token_id
    length = tokens.index(end) if end in tokens else len(tokens)
    words = tokenizer.batch_decode([[token] for token in tokens[:length]])
    return [TokenMap(word, seen) for word, seen in zip(words, maps[:length], strict=True)]
