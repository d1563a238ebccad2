"""Recurrent cells, and the gated recurrent unit as its papers have it.

Papers: Elman 1990; Hochreiter & Schmidhuber 1997 with the forget gate of Gers et al. 2000 (LSTM);
Gers & Schmidhuber 2000 (peepholes, in the notation of Graves 2013, arXiv 1308.0850, eq. 7 to 11);
Cho et al. 2014, §2.3 (GRU, arXiv 1406.1078); Jozefowicz et al. 2015, §4 (MUT1 to MUT3); Zoph & Le
2017, "Neural Architecture Search with Reinforcement Learning", §4.2 (NAS, arXiv 1611.01578).

Parameters are those of `torch.nn.RNN`, `LSTM` and `GRU`, gates in the same order, so that their
weights fit; `torch.nn.GRU` is `gru-reset-after`, another function than the paper's. MUT1 and MUT2
add the input itself to what is H wide; an input of another width goes through a matrix first, for
which the paper has no symbol. NAS is the paper's cell of base 8 as its authors published it
(`NASCell` of TensorFlow's contrib), without the projection; there W has no bias.

The gated recurrent unit is also that of Bahdanau et al. 2015 §A.1.1 (arXiv 1409.0473).
`torch.nn.GRU` is another function: it multiplies the reset gate into U h (`linear_before_reset=1`
in ONNX's words) where the papers multiply it into h (0), and its update gate is the share of the
old state where Bahdanau's is the share of the new one.

Legend: B batch, S positions, D width of an input, H width of a state.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch._higher_order_ops.scan import scan
from torch.nn import functional
from torch.onnx import is_in_onnx_export, ops

from export.layers.attention.attention import within

States = tuple[Tensor, ...]
"""(B, H) each; the first one is what the layer above reads."""


class Cell(nn.Module):
    """Base of all cells.

    Attributes:
        states: Names of the states.
        input_blocks: Blocks of H rows in the input's matrix.
        recurrent_blocks: The same in the state's matrix.
        adds_input: Whether the input itself is added to something H wide.
        operator: ONNX's operator that computes a whole sequence, if there is one.
        gates: Our block that each block of the operator's matrices is.
        attributes: Of the operator.
        is_cpu_only: Whether the operator, with those attributes, has no CUDA kernel.
    """

    states: ClassVar[tuple[str, ...]] = ("state",)
    input_blocks: ClassVar[int]
    recurrent_blocks: ClassVar[int]
    adds_input: ClassVar[bool] = False
    operator: ClassVar[str | None] = None
    gates: ClassVar[tuple[int, ...]] = (0,)
    attributes: ClassVar[dict[str, int]] = {}
    is_cpu_only: ClassVar[bool] = False

    def __init__(self, input_width: int, width: int) -> None:
        super().__init__()
        self.width = width
        self.input = nn.Linear(input_width, self.input_blocks * width)
        self.recurrence = nn.Linear(width, self.recurrent_blocks * width)
        self.bypass: nn.Module = nn.Identity()
        if self.adds_input and input_width != width:
            self.bypass = nn.Linear(input_width, width, bias=False)

    def feed(self, x: Tensor) -> Tensor:
        """(…, D) → what the cell needs of its inputs; for many positions at once."""
        return self.input(x)

    def forward(self, fed: Tensor, states: States) -> States:
        """One position: what `feed` made of it, (B, …), and the states before → the states."""
        raise NotImplementedError

    def initial(self, rows: Tensor) -> States:
        """Zeros for as many rows as a tensor (B, …) has."""
        return tuple(rows.new_zeros(rows.shape[0], self.width) for _ in self.states)

    def _recur(self, state: Tensor, start: int, stop: int) -> Tensor:
        """Blocks [start, stop) of the state's product alone."""
        rows = slice(start * self.width, stop * self.width)
        return functional.linear(state, self.recurrence.weight[rows], self.recurrence.bias[rows])


class Elman(Cell):
    """h' = tanh(W x + U h)."""

    input_blocks = recurrent_blocks = 1
    operator = "RNN"

    def forward(self, fed: Tensor, states: States) -> States:
        """(B, H), (h,) → (h',)."""
        return ((fed + self.recurrence(states[0])).tanh(),)


class LSTM(Cell):
    """c' = f c + i g, h' = o tanh c', with gates i, f, o = σ(…) and g = tanh(…) of x and h."""

    states = ("state", "cell")
    input_blocks = recurrent_blocks = 4  # i, f, g, o
    operator = "LSTM"
    gates = (0, 3, 1, 2)

    def forward(self, fed: Tensor, states: States) -> States:
        """(B, 4·H), (h, c) → (h', c')."""
        state, cell = states
        i, f, g, o = (fed + self.recurrence(state)).chunk(4, dim=-1)
        cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
        return o.sigmoid() * cell.tanh(), cell


class PeepholeLSTM(LSTM):
    """An LSTM whose gates i and f read c, and whose gate o reads c'."""

    def __init__(self, input_width: int, width: int) -> None:
        super().__init__(input_width, width)
        self.peephole = nn.Parameter(torch.zeros(3, width))  # i, o, f, as in ONNX

    def forward(self, fed: Tensor, states: States) -> States:
        """(B, 4·H), (h, c) → (h', c')."""
        state, cell = states
        for_i, for_o, for_f = self.peephole
        i, f, g, o = (fed + self.recurrence(state)).chunk(4, dim=-1)
        kept, added = (f + for_f * cell).sigmoid(), (i + for_i * cell).sigmoid()
        cell = kept * cell + added * g.tanh()
        return (o + for_o * cell).sigmoid() * cell.tanh(), cell


class GRU(Cell):
    """h' = z h + (1 - z) tanh(W x + U (r h)), with gates r and z = σ(W x + U h)."""

    input_blocks = recurrent_blocks = 3  # r, z, candidate
    operator = "GRU"
    gates = (1, 0, 2)
    attributes: ClassVar[dict[str, int]] = {"linear_before_reset": 0}
    is_cpu_only = True

    def forward(self, fed: Tensor, states: States) -> States:
        """(B, 3·H), (h,) → (h',)."""
        (state,) = states
        for_r, for_z, for_candidate = fed.chunk(3, dim=-1)
        recurrent_r, recurrent_z = self._recur(state, 0, 2).chunk(2, dim=-1)
        reset, kept = (for_r + recurrent_r).sigmoid(), (for_z + recurrent_z).sigmoid()
        candidate = (for_candidate + self._candidate(reset, state)).tanh()
        return (kept * state + (1 - kept) * candidate,)

    def _candidate(self, reset: Tensor, state: Tensor) -> Tensor:
        return self._recur(reset * state, 2, 3)


class ResetAfterGRU(GRU):
    """`torch.nn.GRU`: the reset gate multiplies U h instead of h."""

    attributes: ClassVar[dict[str, int]] = {"linear_before_reset": 1}
    is_cpu_only = False

    def _candidate(self, reset: Tensor, state: Tensor) -> Tensor:
        return reset * self._recur(state, 2, 3)


class MUT1(Cell):
    """z = σ(W x), r = σ(W x + U h), h' = z tanh(U (r h) + tanh x) + (1 - z) h."""

    input_blocks = recurrent_blocks = 2  # W: z, r; U: r, candidate
    adds_input = True

    def feed(self, x: Tensor) -> Tensor:
        """(…, D) → (…, 3·H)."""
        return torch.cat([self.input(x), self.bypass(x).tanh()], dim=-1)

    def forward(self, fed: Tensor, states: States) -> States:
        """(B, 3·H), (h,) → (h',)."""
        (state,) = states
        for_z, for_r, for_candidate = fed.chunk(3, dim=-1)
        reset = (for_r + self._recur(state, 0, 1)).sigmoid()
        candidate = (self._recur(reset * state, 1, 2) + for_candidate).tanh()
        return (_mix(for_z.sigmoid(), candidate, state),)


class MUT2(Cell):
    """z = σ(W x + U h), r = σ(x + U h), h' = z tanh(U (r h) + W x) + (1 - z) h."""

    input_blocks, recurrent_blocks = 2, 3  # W: z, candidate; U: z, r, candidate
    adds_input = True

    def feed(self, x: Tensor) -> Tensor:
        """(…, D) → (…, 3·H)."""
        return torch.cat([self.input(x), self.bypass(x)], dim=-1)

    def forward(self, fed: Tensor, states: States) -> States:
        """(B, 3·H), (h,) → (h',)."""
        (state,) = states
        for_z, for_candidate, for_r = fed.chunk(3, dim=-1)
        recurrent_z, recurrent_r = self._recur(state, 0, 2).chunk(2, dim=-1)
        reset = (for_r + recurrent_r).sigmoid()
        candidate = (self._recur(reset * state, 2, 3) + for_candidate).tanh()
        return (_mix((for_z + recurrent_z).sigmoid(), candidate, state),)


class MUT3(Cell):
    """z = σ(W x + U tanh h), r = σ(W x + U h), h' = z tanh(U (r h) + W x) + (1 - z) h."""

    input_blocks = recurrent_blocks = 3  # z, r, candidate

    def forward(self, fed: Tensor, states: States) -> States:
        """(B, 3·H), (h,) → (h',)."""
        (state,) = states
        for_z, for_r, for_candidate = fed.chunk(3, dim=-1)
        new = (for_z + self._recur(state.tanh(), 0, 1)).sigmoid()
        reset = (for_r + self._recur(state, 1, 2)).sigmoid()
        candidate = (self._recur(reset * state, 2, 3) + for_candidate).tanh()
        return (_mix(new, candidate, state),)


class NAS(Cell):
    """Of sums s of W x and U h, the fourth a product: a tree of them, in which c is added.

    c' = tanh(tanh(σ(s1) relu(s2)) + c) tanh(σ(s3) + relu(s4)),
    h' = tanh(c' tanh(tanh(tanh(s5) σ(s6)) + σ(tanh(s7) + σ(s8)))).
    """

    states = ("state", "cell")
    input_blocks = recurrent_blocks = 8

    def forward(self, fed: Tensor, states: States) -> States:
        """(B, 8·H), (h, c) → (h', c')."""
        state, cell = states
        given, recurred = fed.chunk(8, dim=-1), self.recurrence(state).chunk(8, dim=-1)
        one, two, three, _, five, six, seven, eight = map(torch.add, given, recurred)
        product = (given[3] * recurred[3]).relu()
        injected = ((one.sigmoid() * two.relu()).tanh() + cell).tanh()
        cell = injected * (three.sigmoid() + product).tanh()
        out = (five.tanh() * six.sigmoid()).tanh() + (seven.tanh() + eight.sigmoid()).sigmoid()
        return (cell * out.tanh()).tanh(), cell


def _mix(new: Tensor, candidate: Tensor, state: Tensor) -> Tensor:
    """`new` is the share of the candidate."""
    return new * candidate + (1 - new) * state


CELLS: dict[str, type[Cell]] = {
    "rnn": Elman,
    "lstm": LSTM,
    "lstm-peephole": PeepholeLSTM,
    "gru": GRU,
    "gru-reset-after": ResetAfterGRU,
    "mut1": MUT1,
    "mut2": MUT2,
    "mut3": MUT3,
    "nas": NAS,
}
"""Name in `config.json` → cell."""


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
