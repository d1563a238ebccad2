"""The fields of `config.json` that all checkpoints of recurrent layers over words have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from export.config.config_reader import ConfigReader
from export.layers.recurrence.cells import CELLS, Cell
from export.layers.recurrence.recurrent_stack import RecurrentStack, tensor_names


@dataclass(frozen=True)
class RecurrentConfig:
    """Sizes of an embedding table and of the recurrent layers above it.

    Attributes:
        max_positions: Longest text in training; a recurrence has no position table.
    """

    vocabulary_size: int
    word_width: int
    hidden_width: int
    layers: int
    cell: type[Cell]
    max_positions: int

    @classmethod
    def read(cls, reader: ConfigReader) -> Self:
        """The fields.

        Raises:
            CheckpointError: a field is missing, is no size, or has a value that is not supported.
        """
        return cls(
            vocabulary_size=reader.integer("vocab_size"),
            word_width=reader.integer("embedding_size"),
            hidden_width=reader.integer("hidden_size"),
            layers=reader.layers("num_layers", 1),
            cell=CELLS[reader.choice("cell", CELLS)],
            max_positions=reader.integer("max_positions"),
        )

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
