"""Rows of batches: where the result of one input is in the outcomes of a plan's calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from inference.bundle.manifest import Part, Role
from inference.errors import InternalError, ServingError
from inference.processing.prepared_image import PreparedImage
from inference.tasks.shared.length_buckets import ROWS
from inference.tasks.shared.model_calls import Array, InferCall, Outcome, map_valid, unwrap


@dataclass(frozen=True)
class Row:
    """One row of one call."""

    call: int
    row: int

    def read(self, outcomes: Sequence[Outcome], role: Role, length: int | None = None) -> Array:
        """This row of an output, without the batch dimension.

        Args:
            length: Entries of the first dimension to return, where the rest is padding.

        Raises:
            InternalError: the row has NaN or an infinite value, which JSON cannot carry.
            ServingError: its call failed.
        """
        outputs = unwrap(outcomes[self.call])
        assert isinstance(outputs, Mapping)
        row: Array = outputs[role][self.row][:length]
        if not np.isfinite(row).all():
            raise InternalError(
                "the model returned values that are not numbers: check its weights, or export it "
                "in fp32"
            )
        return row


def image_rows(
    images: Sequence[PreparedImage | ServingError],
    part: Part,
    returns: tuple[Role, ...],
    calls: list[InferCall],
    shared: Mapping[Role, Array] | None = None,
    most: int = ROWS,
) -> tuple[Row | ServingError, ...]:
    """Adds calls for the readable images to `calls`: each image's row, or its error.

    Args:
        shared: Further inputs, alike for all images, without the batch dimension.
        most: Images of a call.
    """
    most = min(most, ROWS)
    readable = [image for image in images if not isinstance(image, ServingError)]
    rows: list[Row] = []
    for start in range(0, len(readable), most):
        batch = readable[start : start + most]
        rows.extend(Row(len(calls), position) for position in range(len(batch)))
        alike = {role: np.stack([array] * len(batch)) for role, array in (shared or {}).items()}
        inputs = {Role.PIXELS: np.stack([image.pixels for image in batch]), **alike}
        calls.append(InferCall.of(part, inputs, returns=returns))
    remaining = iter(rows)
    return map_valid(images, lambda _: next(remaining))
