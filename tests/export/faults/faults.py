"""Mistakes that a port of a model can make, one at a time.

`GENERAL_FAULTS` apply to any network. `OWN_FAULTS` are further ones of single architectures; a new
architecture needs none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import torch
from torch import nn

from export.layers.attention import additive_attention, attention, cached_attention
from export.layers.attention.additive_attention import AdditiveAttention
from export.layers.attention.attention import attend, within
from export.layers.attention.heads import Heads, Rows
from export.layers.blocks import MLP
from export.layers.recurrence import cells
from export.layers.recurrence.cells import GatedUnit
from export.models.captioners import show_attend_tell
from export.models.recurrent.bahdanau import Decoder

Fault = Callable[[Any], Any]
"""Network → context in which its forward is wrong."""


class _Planted:
    """A change to the network itself; nothing to undo, the network is a copy."""

    def __enter__(self) -> None: ...

    def __exit__(self, *error: object) -> None: ...


def change(action: Callable[[Any], object]) -> Fault:
    def plant(network: Any) -> _Planted:
        with torch.no_grad():
            action(network)
        return _Planted()

    return plant


def replaced(owner: Any, name: str, wrong: Any) -> Fault:
    return lambda net: patch.object(owner, name, wrong)


def swap_modules(owner: Any, first: str, second: str) -> None:
    held = getattr(owner, first)
    setattr(owner, first, getattr(owner, second))
    setattr(owner, second, held)


def swapped(owner: str, first: str, second: str) -> Fault:
    return change(lambda net: swap_modules(net.get_submodule(owner), first, second))


def _shifted(rows: Rows, new: int) -> torch.Tensor:
    start = rows.lengths.long() - rows.last  # off by one
    return start[:, None] + torch.arange(new)[None]


def _unmasked(
    heads: Heads, query: Any, key: Any, value: Any, visible: Any = None, bias: Any = None
) -> Any:
    return attend(heads, query, key, value, bias=bias)


MARIAN: dict[str, Fault] = {
    "a bias is dropped": change(lambda net: net.decoder.blocks[0].mlp.up.bias.zero_()),
    "two norms are swapped": swapped("decoder.blocks.0", "attention_norm", "cross_norm"),
    "query and key are swapped": swapped("decoder.blocks.0.attention", "query", "key"),
    "cross key and value are swapped": swapped("decoder.blocks.0.cross", "key", "value"),
    "another activation": change(
        lambda net: setattr(net.decoder.blocks[1].mlp, "activation", nn.functional.gelu)
    ),
    "the embedding scale is forgotten": change(
        lambda net: setattr(net.decoder.embedding, "scale", 1.0)
    ),
    "the logits bias is dropped": change(lambda net: net.decoder.output_bias.zero_()),
    "sines and cosines are interleaved": change(
        lambda net: net.encoder.embedding.positions.table.copy_(
            net.encoder.embedding.positions.table.unflatten(1, (2, -1)).mT.flatten(1)
        )
    ),
    "positions are off by one": replaced(
        Rows, "positions", lambda rows, new: _shifted(rows, new).clamp(max=rows.total - 1)
    ),
    "scores are not scaled": replaced(Heads, "score_scale", 1.0),
    "padding is attended to": replaced(attention, "attend", _unmasked),
    "later tokens are attended to": replaced(cached_attention, "attend", _unmasked),
    "padding of the source is seen": replaced(
        attention, "within", lambda lengths, size: within(torch.full_like(lengths, size), size)
    ),
    "a block is skipped": change(lambda net: setattr(net.encoder.blocks, "0", _Identity())),
}

CAPTIONER: dict[str, Fault] = {
    "erf for tanh in GELU": change(
        lambda net: setattr(net.decoder.blocks[0].mlp, "activation", nn.functional.gelu)
    ),
    "another epsilon in the norms": change(
        lambda net: setattr(net.decoder.blocks[0].mlp_norm, "eps", 1e-5)
    ),
    "the final norm is missing": change(lambda net: setattr(net.decoder, "norm", _Identity())),
    "the image's norm is missing": change(
        lambda net: setattr(net.encoder.network, "norm", _Identity())
    ),
    "the projection is not biased": change(lambda net: net.encoder.projection.bias.zero_()),
    "height and width of a patch are swapped": change(
        lambda net: net.encoder.network.patches.projection.weight.copy_(
            net.encoder.network.patches.projection.weight.flip(2)
        )
    ),
    "red and blue are swapped": change(
        lambda net: net.encoder.network.patches.projection.weight.copy_(
            net.encoder.network.patches.projection.weight.flip(1)
        )
    ),
    "the class token has no position": change(
        lambda net: net.encoder.network.positions.table[:, 0].zero_()
    ),
}


GPT2: dict[str, Fault] = {
    "erf for tanh in GELU": CAPTIONER["erf for tanh in GELU"],
    "another epsilon in the norms": CAPTIONER["another epsilon in the norms"],
    "the final norm is missing": CAPTIONER["the final norm is missing"],
    "the norms of a block are swapped": swapped("decoder.blocks.1", "attention_norm", "mlp_norm"),
    "key and value are swapped": swapped("decoder.blocks.0.attention", "key", "value"),
    "a bias is dropped": change(lambda net: net.decoder.blocks[1].attention.out.bias.zero_()),
    "positions are off by one": MARIAN["positions are off by one"],
    "scores are not scaled": MARIAN["scores are not scaled"],
    "later tokens are attended to": MARIAN["later tokens are attended to"],
    "a block is skipped": change(lambda net: setattr(net.decoder.blocks, "1", _Idle())),
}


def _gated(is_reset_last: bool, is_update_old: bool) -> Callable[..., torch.Tensor]:
    """A unit's forward with one of the two differences of `torch.nn.GRU`."""

    def forward(unit: GatedUnit, fed: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        for_gates, for_candidate = fed.split([2 * unit.width, unit.width], dim=-1)
        update, reset = (for_gates + unit.gates(state)).sigmoid().chunk(2, dim=-1)
        carried = reset * unit.candidate(state) if is_reset_last else unit.candidate(reset * state)
        update = 1 - update if is_update_old else update
        return state + update * ((for_candidate + carried).tanh() - state)

    return forward


_ATTEND = AdditiveAttention.forward


def _misaligned(*inputs: Any) -> Any:
    """Attention that returns its weights shifted by one position; contexts stay right."""
    context, weights = _ATTEND(*inputs)
    return context, weights.roll(1, dims=-1)


def _all_seen(lengths: torch.Tensor, size: int) -> torch.Tensor:
    return within(torch.full_like(lengths, size), size)


def _from_rightward(decoder: Decoder, annotations: torch.Tensor) -> tuple[torch.Tensor]:
    return (decoder.initial(annotations[:, 0].chunk(2, dim=-1)[0]).tanh(),)


def _halves(decoder: Decoder, *inputs: torch.Tensor) -> torch.Tensor:
    words, state, context = inputs
    deep = decoder.readout(torch.cat([state, words, context], dim=-1))
    return decoder.output(deep.unflatten(-1, (2, -1)).amax(dim=-2))


BAHDANAU: dict[str, Fault] = {
    "the reset gate comes after the product": replaced(
        GatedUnit, "forward", _gated(is_reset_last=True, is_update_old=False)
    ),
    "the update gate is the share of the old state": replaced(
        GatedUnit, "forward", _gated(is_reset_last=False, is_update_old=True)
    ),
    "padding is read": replaced(cells, "within", _all_seen),
    "padding is looked at": replaced(additive_attention, "within", _all_seen),
    "the alignment is one word off": replaced(AdditiveAttention, "forward", _misaligned),
    "both directions are swapped": swapped("encoder.gru", "rightward", "leftward"),
    "the decoder starts from the last word": replaced(Decoder, "initial_states", _from_rightward),
    "maxout takes halves for pairs": replaced(Decoder, "logits", _halves),
    "gates z and r are swapped": change(
        lambda net: net.decoder.unit.gates.weight.copy_(
            net.decoder.unit.gates.weight.unflatten(0, (2, -1)).flip(0).flatten(0, 1)
        )
    ),
    "a readout's bias is dropped": change(lambda net: net.decoder.readout.bias.zero_()),
}


def _column_by_column(encoder: Any, pixels: torch.Tensor) -> torch.Tensor:
    features = encoder.convolutions(encoder.pixel_norm(pixels))
    return features.transpose(2, 3).flatten(2).transpose(1, 2)


def _memory_as_it_is(
    cell: Any, x: torch.Tensor, hidden: torch.Tensor, memory: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    keep, write, show, new = cell.gates(torch.cat([x, hidden], dim=-1)).chunk(4, dim=-1)
    memory = keep.sigmoid() * memory + write.sigmoid() * new.tanh()
    return show.sigmoid() * memory, memory


def _from_first_cell(decoder: Any, annotations: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    first = annotations[:, 0]
    return decoder.initial_hidden(first).tanh(), decoder.initial_cell(first).tanh()


def _swap_gates(linear: nn.Linear, first: int, second: int) -> None:
    order = list(range(4))
    order[first], order[second] = second, first
    for weights in (linear.weight, linear.bias):
        weights.copy_(weights.unflatten(0, (4, -1))[order].flatten(0, 1))


SHOW_ATTEND_TELL: dict[str, Fault] = {
    "the grid is read column by column": replaced(
        show_attend_tell.Encoder, "features", _column_by_column
    ),
    "memory is shown without its tanh": replaced(
        show_attend_tell.LSTMCell, "forward", _memory_as_it_is
    ),
    "the state starts from one cell": replaced(
        show_attend_tell.Decoder, "initial_states", _from_first_cell
    ),
    "input and forget gates are swapped": change(
        lambda net: _swap_gates(net.decoder.lstm.gates, 0, 1)
    ),
    "output gate and candidate are swapped": change(
        lambda net: _swap_gates(net.decoder.lstm.gates, 2, 3)
    ),
    "first state and first memory are swapped": swapped(
        "decoder", "initial_hidden", "initial_cell"
    ),
    "the context is not gated": change(lambda net: net.decoder.gate.bias.fill_(50)),
    "the attention is one cell off": BAHDANAU["the alignment is one word off"],
    "cells have no position": change(lambda net: net.encoder.positions.zero_()),
    "another epsilon in batch normalisation": change(
        lambda net: setattr(net.encoder.convolutions[1].norm, "eps", 1e-3)
    ),
    "pictures are normalised by their batch": change(
        lambda net: net.encoder.convolutions[0].norm.train()
    ),
    "red and blue are swapped": change(
        lambda net: net.encoder.convolutions[0].filter.weight.copy_(
            net.encoder.convolutions[0].filter.weight.flip(1)
        )
    ),
    "the context's bias is dropped": change(lambda net: net.decoder.from_context.bias.zero_()),
}


def _each_norm(change: Callable[[nn.Module], None]) -> Callable[[nn.Module], bool]:
    def apply(network: nn.Module) -> bool:
        norms = [module for module in network.modules() if hasattr(module, "eps")]
        for norm in norms:
            change(norm)
        return bool(norms)

    return apply


def _other_activations(network: nn.Module) -> bool:
    layers = [module for module in network.modules() if isinstance(module, MLP)]
    for layer in layers:
        layer.activation = torch.sin
    return bool(layers)


GENERAL_FAULTS: dict[str, Callable[[nn.Module], bool]] = {
    "norms have another epsilon": _each_norm(lambda norm: setattr(norm, "eps", 0.05)),
    "another activation": _other_activations,
}
"""Title → plants the fault in a network; whether it has anything of the kind."""


class _Idle(nn.Module):
    """A block without effect."""

    def forward(self, x: Any, rows: Rows, past: Any, *rest: Any) -> Any:
        return x, past


class _Identity(nn.Module):
    """Returns its first argument."""

    def forward(self, x: Any, *rest: Any) -> Any:
        return x


OWN_FAULTS: dict[str, dict[str, Fault]] = {
    "marian": MARIAN,
    "vision-encoder-decoder": CAPTIONER,
    "gpt2": GPT2,
    "bahdanau": BAHDANAU,
    "show-attend-tell": SHOW_ATTEND_TELL,
}
