"""Number formats and runtimes that a checkpoint is exported for."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal


class Precision(StrEnum):
    """What `--precision` offers."""

    FP32 = "fp32"
    FP16 = "fp16"
    BF16 = "bf16"
    INT8 = "int8"
    INT8_FAST = "int8-fast"
    INT4 = "int4"

    @property
    def is_batch_invariant(self) -> bool:
        """Whether a row's result is the same whatever else is in the batch."""
        return self is not Precision.INT8_FAST


class Runtime(StrEnum):
    """What `--runtime` offers."""

    ONNXRUNTIME = "onnxruntime"
    OPENVINO = "openvino"
    TENSORRT = "tensorrt"
    AUTO = "auto"
    """The faster of the first two, measured at export."""

    @property
    def is_named(self) -> bool:
        """Whether it is a runtime and not a way to choose one."""
        return self is not Runtime.AUTO

    @property
    def in_manifest(self) -> Literal["onnxruntime", "openvino", "tensorrt"]:
        """What serves graphs that are exported for it; `auto` begins with ONNX Runtime's."""
        match self:
            case Runtime.OPENVINO:
                return "openvino"
            case Runtime.TENSORRT:
                return "tensorrt"
            case _:
                return "onnxruntime"
