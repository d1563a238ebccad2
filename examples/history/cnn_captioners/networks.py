"""Three captioners over one CNN: their folders, their passes over given words, greedy words.

Show and Tell, Show, Attend and Tell, and a CNN with a Transformer of about the same size. The first
convolutions are those of `example-show-attend-tell` and stay as they are, as the papers keep a CNN
that was trained on ImageNet; what follows them is each system's own.

Legend: B pictures, T words, N grid cells, V vocabulary, D width of the shared features.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import GPT2Tokenizer
from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

from examples import checkpoint
from examples.scenes.rendering import SIDE
from examples.scenes.scores import ObserveFunction, TokenMap
from examples.show_attend_tell import soft_captioner
from export.architecture import Architecture
from export.checkpoint.checkpoint import WEIGHTS, open_checkpoint
from export.graphs.source_model import SourceModel
from export.layers.attention.heads import Rows
from export.layers.decoder import tied_logits
from export.models.captioners import cnn_transformer, show_and_tell, show_attend_tell

SHARED_FROM = checkpoint("example-show-attend-tell")
SHARED = 5
"""Convolutions that every system shares."""
_SHARED_SIZES = {"channels": [32, 48, 96, 96, 160], "strides": [2, 1, 2, 1, 2]}
MAX_TOKENS = 32

Told = tuple[Tensor, Tensor | None]
"""Logits (B, T, V), and the attention of each word (B, T, N) where a system has one."""


def tell_from_states(model: show_and_tell.ShowAndTell, features: Tensor, words: Tensor) -> Told:
    """Show and Tell: the picture is read once, in front of the words."""
    decoder = model.decoder
    cells = model.encoder.convolutions[SHARED:](features).permute(0, 2, 3, 1)
    states = decoder.initial_states(cells.flatten(1))
    outputs = []
    for fed in decoder.lstm.feed(decoder.words(words)).unbind(dim=1):
        states = decoder.lstm(fed, states)
        outputs.append(states[0])
    return decoder.output(torch.stack(outputs, dim=1)), None


def tell_attending(model: show_attend_tell.ShowAttendTell, features: Tensor, words: Tensor) -> Told:
    """Show, Attend and Tell: each word looks at the cells again."""
    decoder = model.decoder
    annotations = features.flatten(2).transpose(1, 2) + model.encoder.positions
    keys, states = decoder.attention.project_keys(annotations), decoder.initial_states(annotations)
    logits, attention = [], []
    for tokens in words.unbind(dim=1):
        scores, states, weights = decoder(tokens, states, annotations, keys)
        logits.append(scores)
        attention.append(weights)
    return torch.stack(logits, dim=1), torch.stack(attention, dim=1)


def tell_at_once(model: cnn_transformer.Captioner, features: Tensor, words: Tensor) -> Told:
    """CNN and Transformer: all words at once; the attention is the last layer's."""
    encoder, decoder = model.encoder, model.decoder
    x = encoder.projection(features.flatten(2).transpose(1, 2)) + encoder.positions
    for block in encoder.blocks:
        x = block(x)
    cross = decoder.project_cross_kv(encoder.norm(x))
    batch, count = words.shape
    lengths = torch.full((batch,), count, dtype=torch.int32)
    rows = Rows(lengths, torch.tensor(count, dtype=torch.int32), torch.full((batch,), count - 1))
    shape = (batch, decoder.heads.groups, count, decoder.heads.cache_width)
    empty = torch.zeros(shape, dtype=cross[0][0].dtype)
    past = [(empty, empty)] * decoder.layers
    hidden, _ = decoder(words, rows, past, cross)
    logits = tied_logits(hidden, decoder.embedding.tokens.weight)
    if torch.is_grad_enabled():
        return logits, None
    return logits, decoder.cross_weights(words, rows, past, cross, None, decoder.layers - 1)


@dataclass(frozen=True)
class System:
    """One captioner.

    Attributes:
        class_name: `architectures` of its folder.
        sizes: Fields of `config.json`, without those that all systems have.
        tell: Model, features of the shared convolutions (B, D, rows, columns) and words (B, T).
        architecture_words: For the card.
    """

    name: str
    architecture: Architecture
    class_name: str
    sizes: Mapping[str, Any]
    tell: Callable[[Any, Tensor, Tensor], Told]
    architecture_words: str

    @property
    def has_attention(self) -> bool:
        """Whether `tell` returns it."""
        return self.tell is not tell_from_states

    @property
    def folder(self) -> Path:
        """Where its checkpoint is committed."""
        return checkpoint(self.name)


SYSTEMS = (
    System(
        name="history-show-and-tell",
        architecture=show_and_tell.ARCHITECTURE,
        class_name="ShowAndTell",
        sizes={
            "channels": [*_SHARED_SIZES["channels"], 40],
            "strides": [*_SHARED_SIZES["strides"], 2],
            "embedding_size": 60,
            "hidden_size": 96,
            "max_tokens": MAX_TOKENS,
        },
        tell=tell_from_states,
        architecture_words="Show and Tell (Vinyals et al. 2015): six convolutions, whose 4 x 4 grid"
        " of width 40 is the first input of an LSTM of width 96",
    ),
    System(
        name="history-show-attend-tell",
        architecture=show_attend_tell.ARCHITECTURE,
        class_name="ShowAttendTell",
        sizes=_SHARED_SIZES
        | {
            "embedding_size": 64,
            "hidden_size": 72,
            "attention_size": 64,
            "max_tokens": MAX_TOKENS,
        },
        tell=tell_attending,
        architecture_words="Show, Attend and Tell (Xu et al. 2015): five convolutions to an 8 x 8"
        " grid of width 160, soft attention of width 64 and an LSTM of width 72",
    ),
    System(
        name="history-cnn-transformer",
        architecture=cnn_transformer.ARCHITECTURE,
        class_name="CnnTransformer",
        sizes=_SHARED_SIZES
        | {
            "d_model": 72,
            "nhead": 4,
            "num_encoder_layers": 1,
            "num_decoder_layers": 2,
            "dim_feedforward": 160,
            "max_positions": MAX_TOKENS,
        },
        tell=tell_at_once,
        architecture_words="CNN and Transformer (Sharma et al. 2018): five convolutions to an 8 x 8"
        " grid, one encoder and two decoder layers of width 72",
    ),
)


def shared_convolutions() -> nn.Module:
    """The convolutions that all systems begin with, trained."""
    encoder = soft_captioner.read_folder(SHARED_FROM).encoder
    return encoder.convolutions[:SHARED].eval().requires_grad_(False)


def start(system: System, tokenizer: GPT2Tokenizer, shared: nn.Module) -> nn.Module:
    """An untrained network behind the shared convolutions."""
    network = system.architecture.build(system.architecture.read_config(_config(system, tokenizer)))
    encoder: Any = network.encoder
    encoder.convolutions[:SHARED].load_state_dict(shared.state_dict())
    encoder.convolutions[:SHARED].requires_grad_(False)
    if isinstance(network, cnn_transformer.Captioner):
        table = network.decoder.embedding.tokens.weight  # tied: logits begin with a size of one
        nn.init.normal_(table, std=table.shape[1] ** -0.5)
    return network


def save(system: System, network: nn.Module, tokenizer: GPT2Tokenizer, folder: Path) -> None:
    """Writes the folder, weights in float16."""
    folder.mkdir(parents=True, exist_ok=True)
    config = _config(system, tokenizer)
    special = {name: config[name] for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    start_token = {"decoder_start_token_id": tokenizer.eos_token_id}
    rules = {**start_token, "max_length": MAX_TOKENS, "num_beams": 1, **special}
    for file, values in (("config.json", config), ("generation_config.json", rules)):
        (folder / file).write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
    ViTImageProcessorPil(size={"height": SIDE, "width": SIDE}).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    rename = system.architecture.rename(system.architecture.read_config(config))
    stacked: dict[str, list[Tensor]] = {}
    for name, value in network.state_dict().items():
        stacked.setdefault(rename.origin(name), []).append(value.half())
    tensors = {name: torch.cat(parts) for name, parts in stacked.items()}
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})


def read(folder: Path) -> nn.Module:
    """The trained network of a folder, in float32."""
    return SourceModel.open(folder).network


def system_of(folder: Path) -> System:
    """The system whose `model_type` a folder has."""
    model_type = open_checkpoint(str(folder)).config["model_type"]
    return next(system for system in SYSTEMS if system.architecture.name == model_type)


def observer(folder: Path, batch: int = 100) -> ObserveFunction:
    """A function from pictures to greedy words, with attention maps where the system has them."""
    network, tokenizer = read(folder), GPT2Tokenizer.from_pretrained(folder)
    processor = ViTImageProcessorPil.from_pretrained(folder)
    tell = system_of(folder).tell

    def observe(pictures: list[Image.Image]) -> list[list[TokenMap]]:
        seen = []
        for first in range(0, len(pictures), batch):
            given = processor(pictures[first : first + batch], return_tensors="pt").pixel_values
            tokens, attention = greedy(network, tell, given, tokenizer.eos_token_id)
            side = int(attention.shape[-1] ** 0.5)
            maps = attention.unflatten(-1, (side, side)).numpy()
            for row, found in zip(tokens.tolist(), maps, strict=True):
                words = row[: row.index(tokenizer.eos_token_id)]
                texts = tokenizer.batch_decode([[token] for token in words])
                seen.append([TokenMap(*pair) for pair in zip(texts, found, strict=False)])
        return seen

    return observe


@torch.inference_mode()
def greedy(
    network: Any, tell: Callable[[Any, Tensor, Tensor], Told], pixels: Tensor, end: int
) -> tuple[Tensor, Tensor]:
    """The likeliest tokens (B, T + 1) with an end token, and maps (B, T, N).

    A system without attention gets maps of zeros.
    """
    features = network.encoder.convolutions[:SHARED](pixels)
    read_so_far = torch.full((len(pixels), 1), end)
    for _ in range(MAX_TOKENS - 1):
        logits, attention = tell(network, features, read_so_far)
        following = logits[:, -1].argmax(dim=-1, keepdim=True)
        read_so_far = torch.cat([read_so_far, following], dim=1)
        if bool((read_so_far[:, 1:] == end).any(dim=1).all()):
            break
    tokens = torch.cat([read_so_far[:, 1:], torch.full((len(pixels), 1), end)], dim=1)
    if attention is None:
        attention = torch.zeros(len(pixels), tokens.shape[1] - 1, 1)
    return tokens, attention


def _config(system: System, tokenizer: GPT2Tokenizer) -> dict[str, Any]:
    end = tokenizer.eos_token_id
    return {
        "model_type": system.architecture.name,
        "architectures": [system.class_name],
        "dtype": "float16",
        "image_size": SIDE,
        **system.sizes,
        "vocab_size": len(tokenizer),
        "bos_token_id": end,
        "eos_token_id": end,
        "pad_token_id": end,
    }
