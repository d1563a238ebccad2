"""What tests of OpenVINO's precisions require of the processor."""

from __future__ import annotations

import pytest

from inference.openvino_core import why_not_here


def require_precision(precision: str, *, is_generator: bool) -> None:
    """Skips the test where the processor lacks what the precision needs; it is refused there.

    `tests/inference/test_processors.py` tests the refusals on every processor.
    """
    reason = why_not_here(precision, is_generator=is_generator)
    if reason is not None:
        pytest.skip(f"{precision} in OpenVINO: {reason.partition(',')[0]}")
