"""`--device` and the precisions that it has."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer

from examples import CHECKPOINTS
from export.pipeline.cli import export
from export.precision import Device, Precision, Runtime, check_device
from inference.errors import SetupError

ONNX = Runtime.ONNXRUNTIME


@pytest.mark.parametrize("precision", [Precision.FP32, Precision.FP16, Precision.BF16])
def test_cuda_has_floats(precision: Precision) -> None:
    check_device(Device.CUDA, precision, ONNX)


@pytest.mark.parametrize("precision", [Precision.INT8, Precision.INT8_FAST])
def test_int8_is_refused_for_cuda(precision: Precision) -> None:
    with pytest.raises(SetupError, match=f"{precision} is for the CPU.*fp32, fp16, bf16"):
        check_device(Device.CUDA, precision, ONNX)


@pytest.mark.parametrize("runtime", [Runtime.OPENVINO, Runtime.AUTO])
def test_other_runtimes_are_refused_for_cuda(runtime: Runtime) -> None:
    with pytest.raises(SetupError, match=f"--runtime {runtime} is for the CPU"):
        check_device(Device.CUDA, Precision.FP16, runtime)


def test_float16_is_refused_for_the_cpu_with_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(typer.Exit):
        export(str(CHECKPOINTS / "example-gpt"), repository=tmp_path, precision=Precision.FP16)
    assert capsys.readouterr().err == (
        "error: --precision fp16 is for --device cuda: the CPU has few float16 kernels\n"
    )
    assert list(tmp_path.iterdir()) == []


def test_what_the_cpu_had_before_stays() -> None:
    for precision in (Precision.FP32, Precision.INT8, Precision.INT8_FAST, Precision.BF16):
        check_device(Device.CPU, precision, Runtime.OPENVINO)
