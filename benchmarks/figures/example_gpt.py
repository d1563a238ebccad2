"""One prompt through the PyTorch network of example-gpt: what each head computed.

The server returns no attention of a language model: its fused operator has no such output.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor, nn

from examples import CHECKPOINTS
from examples.demo.encoders import BINDINGS
from export.decoder_graphs.language_model import LanguageModel
from export.graphs.source_model import SourceModel
from export.layers.attention.attention import attention_weights, causal
from export.layers.attention.cached_attention import CachedAttention
from export.layers.attention.heads import Heads, Rows

FOLDER = CHECKPOINTS / "example-gpt"
INSTRUCTION = "Translate into the secret code."


@dataclass(frozen=True, eq=False)
class Read:
    """What the heads computed for a prompt of T tokens.

    Attributes:
        tokens: T pieces of text.
        scores: One (H, T, T) a layer: scaled products of queries and keys, nothing masked.
        weights: One (H, T, T) a layer: after mask and softmax.
        scale: That of the scores.
    """

    tokens: list[str]
    scores: list[NDArray[Any]]
    weights: list[NDArray[Any]]
    scale: float


@cache
def network() -> LanguageModel:
    """The network with the committed weights, in float32."""
    built = SourceModel.open(FOLDER).network
    assert isinstance(built, LanguageModel)
    return built


def prompt() -> str:
    """Four examples of a code, and a word of the second."""
    lines = "".join(f"{given} => {answer}\n" for given, answer in BINDINGS)
    return f"{INSTRUCTION}\n\n{lines}{BINDINGS[1][0]} =>"


@cache
@torch.inference_mode()
def read_prompt() -> Read:
    """The prompt in one call, as the engine's prefill computes it."""
    tokenizer = Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
    ids = tokenizer.encode(prompt()).ids
    decoder = network().decoder
    inputs: list[Tensor] = []
    layers = [block.attention for block in decoder.blocks]
    hooks = [layer.register_forward_pre_hook(_keep(inputs)) for layer in layers]
    tokens, count = torch.tensor([ids]), torch.tensor([len(ids)])
    empty = torch.zeros(1, decoder.heads.groups, len(ids), decoder.heads.cache_width)
    rows = Rows(count.int(), count.max().int(), count - 1)
    decoder(tokens, rows, [(empty, empty)] * decoder.layers)
    for hook in hooks:
        hook.remove()
    computed = [_compute(layer, x) for layer, x in zip(layers, inputs, strict=True)]
    return Read(
        tokens=[tokenizer.decode([token]) for token in ids],
        scores=[scores for scores, _ in computed],
        weights=[weights for _, weights in computed],
        scale=decoder.heads.score_scale,
    )


def _keep(inputs: list[Tensor]) -> Any:
    def hook(layer: nn.Module, given: tuple[Any, ...]) -> None:
        inputs.append(given[0])

    return hook


def _compute(layer: CachedAttention, x: Tensor) -> tuple[NDArray[Any], NDArray[Any]]:
    """Scaled scores and weights of one layer, (H, T, T) each, of its input (1, T, D)."""
    query, key = layer.split(layer.query(x)), layer.split(layer.key(x))
    heads: Heads = layer.heads
    visible = causal(torch.arange(x.shape[1])[None], x.shape[1], heads.window)[:, None]
    scores = heads.score_scale * query @ key.transpose(-1, -2)
    return scores[0].numpy(), attention_weights(heads, query, key, visible)[0].numpy()
