"""The gated recurrent unit as its papers have it, and a bidirectional layer of them.

Papers: Cho et al. 2014 §2.3 (arXiv 1406.1078); Bahdanau et al. 2015 §A.1.1 (arXiv 1409.0473).
`torch.nn.GRU` is another function: it multiplies the reset gate into U h (`linear_before_reset=1`
in ONNX's words) where the papers multiply it into h (0), and its update gate is the share of the
old state where Bahdanau's is the share of the new one.

Legend: B batch, S positions, D width of an input, H width of a state.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch._higher_order_ops.scan import scan
from torch.onnx import is_in_onnx_export, ops

from export.layers.attention.scores import within


class GatedUnit(nn.Module):
    """h' = (1 - z) h + z tanh(W x + U (r h)), with gates z and r = σ(W x + U h).

    All of W stands in `input`, in the order z, r, candidate; so does what else feeds the unit.
    """

    def __init__(self, input_width: int, width: int) -> None:
        super().__init__()
        self.width = width
        self.input = nn.Linear(input_width, 3 * width)
        self.gates = nn.Linear(width, 2 * width, bias=False)
        self.candidate = nn.Linear(width, width, bias=False)

    def forward(self, fed: Tensor, state: Tensor) -> Tensor:
        """(B, H) → (B, H).

        Args:
            fed: (B, 3·H): `input` of what the unit reads; for many positions at once outside.
        """
        for_gates, for_candidate = fed.split([2 * self.width, self.width], dim=-1)
        update, reset = (for_gates + self.gates(state)).sigmoid().chunk(2, dim=-1)
        candidate = (for_candidate + self.candidate(reset * state)).tanh()
        return state + update * (candidate - state)


class BidirectionalGRU(nn.Module):
    """One unit reads from the left, one from the right; neither reads padding.

    Attributes:
        is_for_cuda: Whether it is exported for CUDA (`Lowering.is_for_cuda`), whose `GRU` is
            another function: then each unit is a `Scan`.
    """

    is_for_cuda = False

    packed_weight: Tensor
    packed_recurrence: Tensor
    packed_bias: Tensor

    def __init__(self, input_width: int, width: int) -> None:
        super().__init__()
        self.width = width
        self.rightward = GatedUnit(input_width, width)
        self.leftward = GatedUnit(input_width, width)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        """(B, S, D) → (B, S, 2·H): both units' states, zeros at padding.

        Args:
            lengths: (B,) int32.
        """
        if is_in_onnx_export() and not self.is_for_cuda:
            return self._read_fused(x, lengths)
        visible = within(lengths, x.shape[1])[..., None]  # (B, S, 1)
        if is_in_onnx_export():
            units = ((self.rightward, False), (self.leftward, True))
            return torch.cat(
                [_read_scanning(u, x, visible, is_reversed=back) for u, back in units], -1
            )
        rightward = self._read(self.rightward, x, visible, range(x.shape[1]))
        leftward = self._read(self.leftward, x, visible, reversed(range(x.shape[1])))
        return torch.cat([rightward, leftward], dim=-1)

    def _read(self, unit: GatedUnit, x: Tensor, visible: Tensor, order: Iterable[int]) -> Tensor:
        """(B, S, H): a state stays zero until the first word that is seen."""
        fed = unit.input(x)
        state = fed.new_zeros(x.shape[0], self.width)
        states: list[Tensor] = [state] * x.shape[1]
        for place in order:
            state = unit(fed[:, place], state) * visible[:, place]
            states[place] = state
        return torch.stack(states, dim=1)

    def pack(self) -> None:
        """Lays the weights out as ONNX's `GRU` expects them: (directions, gates · H, …).

        Called once before export; the weights as loaded stay the definition. The operator's z is
        the share of the old state: σ(-a) = 1 - σ(a), so z's weights change sign.
        """
        units = (self.rightward, self.leftward)
        sign = torch.ones(3 * self.width, 1)
        sign[: self.width] = -1
        weights = [unit.input.weight.detach() * sign for unit in units]
        recurrences = [torch.cat([u.gates.weight, u.candidate.weight]).detach() for u in units]
        biases = [unit.input.bias.detach() * sign[:, 0] for unit in units]
        none = torch.zeros(3 * self.width)  # the recurrence has no bias of its own
        packed = {
            "packed_weight": torch.stack(weights),
            "packed_recurrence": torch.stack([each * sign for each in recurrences]),
            "packed_bias": torch.stack([torch.cat([bias, none]) for bias in biases]),
        }
        for name, value in packed.items():
            self.register_buffer(name, value.contiguous(), persistent=False)

    def _read_fused(self, x: Tensor, lengths: Tensor) -> Tensor:
        """ONNX's `GRU`, which reads and writes time first and leaves zeros at padding."""
        batch, size, _ = x.shape
        states, _ = ops.symbolic_multi_out(
            "::GRU",
            [
                x.transpose(0, 1),
                self.packed_weight,
                self.packed_recurrence,
                self.packed_bias,
                lengths,
            ],
            {"direction": "bidirectional", "hidden_size": self.width, "linear_before_reset": 0},
            dtypes=[x.dtype, x.dtype],
            shapes=[(size, 2, batch, self.width), (2, batch, self.width)],
        )
        return states.permute(2, 0, 1, 3).flatten(2)  # (S, 2, B, H) → (B, S, 2·H)


def _read_scanning(unit: GatedUnit, x: Tensor, visible: Tensor, *, is_reversed: bool) -> Tensor:
    """(B, S, H), as `_read` computes it, position by position in the graph."""

    def advance(state: Tensor, now: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        fed, is_seen = now
        after = unit(fed, state) * is_seen
        return after, after.clone()

    over = (unit.input(x).transpose(0, 1), visible.to(x.dtype).transpose(0, 1))  # positions first
    _, states = scan(advance, x.new_zeros(x.shape[0], unit.width), over, reverse=is_reversed)
    return states.transpose(0, 1)
