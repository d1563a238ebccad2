"""Layers of recurrent cells over whole sequences, in one direction or both.

In ONNX a layer is the operator of its cell, or a `Scan` over the cell where there is none (on the
device that the graph is for).

Legend: B batch, T positions, D width of an input, H width of a state, N directions (1 or 2).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch._higher_order_ops.scan import scan
from torch.onnx import is_in_onnx_export, ops

from export.config.config_reader import key
from export.layers.attention.attention import within
from export.layers.recurrence.cells import CELLS, Cell, PeepholeLSTM, States


@dataclass(frozen=True)
class RecurrentConfig:
    """Sizes of an embedding table and of the recurrent layers above it.

    Attributes:
        max_positions: Longest text in training; a recurrence has no position table.
    """

    vocabulary_size: int = key("vocab_size")
    word_width: int = key("embedding_size")
    hidden_width: int = key("hidden_size")
    layers: int = key("num_layers", 1, "layers")
    cell_name: str = key("cell", kind="choice", supported=CELLS)
    max_positions: int = key("max_positions")

    @property
    def cell(self) -> type[Cell]:
        """What each layer is made of."""
        return CELLS[self.cell_name]

    @property
    def state_widths(self) -> dict[str, int]:
        """Name → width of each state of layers in one direction, the lowest layer first."""
        return {
            f"{name}_{layer}": self.hidden_width
            for layer in range(self.layers)
            for name in self.cell.states
        }

    def stack(
        self, input_width: int | None = None, *, is_bidirectional: bool = False
    ) -> RecurrentStack:
        """The layers, untrained.

        Args:
            input_width: Of the lowest layer; a word's width by default.
        """
        read = self.word_width if input_width is None else input_width
        return RecurrentStack(
            self.cell, read, self.hidden_width, self.layers, is_bidirectional=is_bidirectional
        )

    def tensor_names(self, *, is_bidirectional: bool = False) -> dict[str, str]:
        """Names of the layers' tensors as `torch.nn` has them → those of `stack`."""
        return tensor_names(self.cell, self.layers, is_bidirectional=is_bidirectional)


class RecurrentLayer(nn.Module):
    """One cell from the left and perhaps one from the right; neither reads padding.

    Attributes:
        is_for_cuda: Whether it is exported for CUDA (`Lowering.is_for_cuda`).
    """

    is_for_cuda = False

    packed_weight: Tensor
    packed_recurrence: Tensor
    packed_bias: Tensor
    packed_peephole: Tensor

    def __init__(
        self, cell: type[Cell], input_width: int, width: int, *, is_bidirectional: bool
    ) -> None:
        super().__init__()
        self.width = width
        self.rightward = cell(input_width, width)
        self.leftward = cell(input_width, width) if is_bidirectional else None

    @property
    def cells(self) -> tuple[Cell, ...]:
        """N cells."""
        return (self.rightward,) if self.leftward is None else (self.rightward, self.leftward)

    @property
    def output_width(self) -> int:
        """N · H."""
        return len(self.cells) * self.width

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        """(B, T, D) → (B, T, N·H): the cells' states, zeros at padding.

        Args:
            lengths: (B,) int32.
        """
        if is_in_onnx_export() and self._has_operator:
            return self._by_operator(x, lengths)
        visible = within(lengths, x.shape[1])[..., None].to(x.dtype)  # (B, T, 1)
        read = _read_scanning if is_in_onnx_export() else _read_stepwise
        both = [read(self.rightward, x, visible, is_reversed=False)]
        if self.leftward is not None:
            both.append(read(self.leftward, x, visible, is_reversed=True))
        return torch.cat(both, dim=-1)

    @property
    def _has_operator(self) -> bool:
        cell = self.rightward
        return cell.operator is not None and not (self.is_for_cuda and cell.is_cpu_only)

    def pack(self) -> None:
        """Lays the weights out as ONNX's operators expect them: (N, blocks · H, …)."""
        if not self._has_operator:
            return
        packed = {
            "packed_weight": torch.stack([_blocks(c, c.input.weight) for c in self.cells]),
            "packed_recurrence": torch.stack([_blocks(c, c.recurrence.weight) for c in self.cells]),
            "packed_bias": torch.stack(
                [
                    torch.cat([_blocks(c, c.input.bias), _blocks(c, c.recurrence.bias)])
                    for c in self.cells
                ]
            ),
        }
        peepholes = [c.peephole.detach() for c in self.cells if isinstance(c, PeepholeLSTM)]
        if peepholes:
            packed["packed_peephole"] = torch.stack([each.flatten() for each in peepholes])
        for name, value in packed.items():
            self.register_buffer(name, value.contiguous(), persistent=False)

    def _by_operator(self, x: Tensor, lengths: Tensor) -> Tensor:
        """ONNX's operator, which reads and writes time first and leaves zeros at padding."""
        cell, count = self.rightward, len(self.cells)
        assert cell.operator is not None
        batch, size, _ = x.shape
        weights = [self.packed_weight, self.packed_recurrence, self.packed_bias]
        inputs: list[Tensor | None] = [x.transpose(0, 1), *weights, lengths]
        if isinstance(cell, PeepholeLSTM):
            inputs += [None, None, self.packed_peephole]
        final = (count, batch, self.width)
        outputs = ops.symbolic_multi_out(
            f"::{cell.operator}",
            inputs,
            {
                "direction": "forward" if count == 1 else "bidirectional",
                "hidden_size": self.width,
                **cell.attributes,
            },
            dtypes=[x.dtype] * (1 + len(cell.states)),
            shapes=[(size, count, batch, self.width), *[final for _ in cell.states]],
        )
        return outputs[0].permute(2, 0, 1, 3).flatten(2)  # (T, N, B, H) → (B, T, N·H)


class RecurrentStack(nn.Module):
    """Layers one above another; each reads all states of the one below.

    Args:
        input_width: D of the first layer.
    """

    def __init__(
        self,
        cell: type[Cell],
        input_width: int,
        width: int,
        layers: int,
        *,
        is_bidirectional: bool = False,
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList()
        for _ in range(layers):
            layer = RecurrentLayer(cell, input_width, width, is_bidirectional=is_bidirectional)
            self.layers.append(layer)
            input_width = layer.output_width
        self.output_width = input_width

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        """(B, T, D), (B,) → (B, T, N·H), zeros at padding."""
        for layer in self.layers:
            x = layer(x, lengths)
        return x

    def step(self, x: Tensor, states: States) -> tuple[Tensor, States]:
        """One position of layers in one direction.

        Args:
            x: (B, D).
            states: Of all layers, the lowest first; zeros before the first position.

        Returns:
            (B, H) of the highest layer, and the new states.
        """
        after: list[Tensor] = []
        for layer in self.layers:
            assert isinstance(layer, RecurrentLayer)
            cell = layer.rightward
            own = states[len(after) : len(after) + len(cell.states)]
            after += cell(cell.feed(x), own)
            x = after[-len(cell.states)]
        return x, tuple(after)


def _read_stepwise(cell: Cell, x: Tensor, visible: Tensor, *, is_reversed: bool) -> Tensor:
    """(B, T, H), position by position: states stay zero until the first word that is seen."""
    fed, states = cell.feed(x), cell.initial(x)
    found: list[Tensor] = [states[0]] * x.shape[1]
    places: Iterable[int] = range(x.shape[1])
    for place in reversed(range(x.shape[1])) if is_reversed else places:
        states = tuple(new * visible[:, place] for new in cell(fed[:, place], states))
        found[place] = states[0]
    return torch.stack(found, dim=1)


def _read_scanning(cell: Cell, x: Tensor, visible: Tensor, *, is_reversed: bool) -> Tensor:
    """The same as a `Scan`."""

    def advance(states: States, now: tuple[Tensor, Tensor]) -> tuple[States, Tensor]:
        fed, is_seen = now
        after = tuple(new * is_seen for new in cell(fed, states))
        return after, after[0].clone()

    over = (cell.feed(x).transpose(0, 1), visible.transpose(0, 1))  # time first
    _, found = scan(advance, cell.initial(x), over, reverse=is_reversed)
    return found.transpose(0, 1)


def _blocks(cell: Cell, tensor: Tensor) -> Tensor:
    """Rows of a parameter, its blocks in the order of ONNX's operator."""
    blocks = tensor.detach().unflatten(0, (-1, cell.width))
    return blocks[list(cell.gates)].flatten(0, 1)


def tensor_names(
    cell: type[Cell], layers: int, *, is_bidirectional: bool = False
) -> dict[str, str]:
    """Names of the tensors as `torch.nn.RNN` and its kin have them → those of a stack."""
    directions = {"": "rightward", "_reverse": "leftward"}
    parts = {"weight_ih": "input.weight", "bias_ih": "input.bias"}
    parts |= {"weight_hh": "recurrence.weight", "bias_hh": "recurrence.bias"}
    parts |= {"bypass": "bypass.weight"} if cell.adds_input else {}
    parts |= {"peephole": "peephole"} if issubclass(cell, PeepholeLSTM) else {}
    return {
        f"{theirs}_l{number}{suffix}": f"layers.{number}.{direction}.{ours}"
        for number in range(layers)
        for suffix, direction in list(directions.items())[: 1 + is_bidirectional]
        for theirs, ours in parts.items()
    }
