"""Number formats, runtimes and devices that a checkpoint is exported for."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from inference.errors import SetupError


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


class Device(StrEnum):
    """Where the graphs of a bundle are to run."""

    CPU = "cpu"
    CUDA = "cuda"


CUDA_PRECISIONS = (Precision.FP32, Precision.FP16, Precision.BF16)


def check_device(device: Device, precision: Precision, runtime: Runtime) -> None:
    """Refuses combinations that nothing serves.

    Raises:
        SetupError: names what the device has.
    """
    if device is Device.CPU:
        if runtime is Runtime.TENSORRT:
            raise SetupError("--runtime tensorrt is for --device cuda")
        if precision is Precision.FP16:
            raise SetupError(
                "--precision fp16 is for --device cuda: the CPU has few float16 kernels"
            )
        return
    if runtime not in (Runtime.ONNXRUNTIME, Runtime.TENSORRT):
        raise SetupError(
            f"--runtime {runtime} is for the CPU: --device cuda has onnxruntime and tensorrt"
        )
    if precision not in CUDA_PRECISIONS:
        raise SetupError(
            f"--precision {precision} is for the CPU: --device cuda has "
            f"{', '.join(CUDA_PRECISIONS)}"
        )
