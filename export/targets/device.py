"""What `--device` offers, and which precisions a device has."""

from __future__ import annotations

from enum import StrEnum

from export.precision import Precision, Runtime
from inference.errors import SetupError


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
