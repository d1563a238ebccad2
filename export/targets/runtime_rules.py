"""Which runtime takes which precision, and how its graphs are lowered."""

from __future__ import annotations

from dataclasses import replace

from export.architecture import Graphs, Lowering
from export.precision import Precision, Runtime
from inference.errors import SetupError


def check_runtime(
    graphs: Graphs, runtime: Runtime, precision: Precision, *, is_calibrated: bool = False
) -> None:
    """Refuses combinations that nothing serves.

    Args:
        is_calibrated: Whether the user gives samples for calibration.

    Raises:
        SetupError: a generator for OpenVINO, a precision that the runtime lacks, or samples that
            nothing is calibrated on.
    """
    if is_calibrated and "step" in graphs.lowerings:
        raise SetupError(
            "--calibration is for stateless models: the int8 cache of a generator is calibrated on "
            "what the model itself generates"
        )
    if is_calibrated and (precision is not Precision.INT8 or runtime is Runtime.ONNXRUNTIME):
        raise SetupError(
            "--calibration is for --precision int8 with --runtime openvino or auto, whose scales "
            "are fixed: other graphs need no data"
        )
    if runtime is Runtime.OPENVINO and "step" in graphs.lowerings:
        raise SetupError("--runtime openvino is for stateless models: this one generates tokens")
    if runtime is Runtime.TENSORRT and "step" in graphs.lowerings:
        raise SetupError("--runtime tensorrt is for stateless models: this one generates tokens")
    if runtime in (Runtime.AUTO, Runtime.TENSORRT):
        return
    lacks = Precision.BF16 if runtime is Runtime.ONNXRUNTIME else Precision.INT8_FAST
    if precision is lacks:
        raise SetupError(f"--precision {precision} is not available with --runtime {runtime}")


def lowered(lowering: Lowering, runtime: Runtime) -> Lowering:
    """A graph's lowering for a runtime: OpenVINO has none of ONNX Runtime's fused operators."""
    return lowering if runtime is Runtime.ONNXRUNTIME else replace(lowering, is_fused=False)
