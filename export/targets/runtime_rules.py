"""Which runtime takes which precision, and how its graphs are lowered."""

from __future__ import annotations

from dataclasses import replace

from export.architecture import Graphs, Lowering
from export.decoder_graphs.image_tokens import ImageTokenStep
from export.layers.attention.attention import Attention
from export.layers.decoder import TransformerDecoder
from export.parity.compiled_run import missing_package
from export.precision import Precision, Runtime
from inference.bundle.manifest import Role
from inference.errors import SetupError

GENERATOR_FILES = ("admit.onnx", "step.onnx")


def check_runtime(
    graphs: Graphs, runtime: Runtime, precision: Precision, *, is_calibrated: bool = False
) -> None:
    """Refuses combinations that nothing serves.

    Args:
        is_calibrated: Whether the user gives samples for calibration.

    Raises:
        SetupError: a generator that the runtime cannot decode, a precision that the runtime lacks
            or this processor, or samples that nothing is calibrated on.
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
        reason = why_not_in_blocks(graphs)
        if reason is not None:
            raise SetupError(
                f"--runtime openvino cannot decode this model: {reason}; use onnxruntime"
            )
    has_int4 = runtime in (Runtime.OPENVINO, Runtime.AUTO) and "step" in graphs.lowerings
    if precision is Precision.INT4 and not has_int4:
        raise SetupError("--precision int4 is for generators with --runtime openvino")
    if runtime is Runtime.TENSORRT and "step" in graphs.lowerings:
        raise SetupError("--runtime tensorrt is for stateless models: this one generates tokens")
    if runtime in (Runtime.AUTO, Runtime.TENSORRT):
        return
    lacks = Precision.BF16 if runtime is Runtime.ONNXRUNTIME else Precision.INT8_FAST
    if precision is lacks:
        raise SetupError(f"--precision {precision} is not available with --runtime {runtime}")
    if runtime is Runtime.OPENVINO:
        _check_processor(precision, is_generator="step" in graphs.lowerings)


def _check_processor(precision: Precision, *, is_generator: bool) -> None:
    """Refuses what OpenVINO would compute otherwise here than elsewhere: no gate could judge it.

    Raises:
        SetupError: says why, and what to use; or OpenVINO is not installed.
    """
    try:
        from inference.openvino_core import why_not_here
    except ImportError as error:
        raise SetupError(missing_package("openvino")) from error
    reason = why_not_here(precision, is_generator=is_generator)
    if reason is not None:
        raise SetupError(f"--runtime openvino has no {precision} here: {reason}")


def check_precision(graphs: Graphs, precision: Precision) -> None:
    """Refuses what the gate cannot judge.

    Raises:
        SetupError: a lower precision of a graph that chooses places of an image.
    """
    chooses = any(each.graph.output(Role.CHOSEN) for each in graphs.lowerings.values())
    if chooses and precision is not Precision.FP32:
        raise SetupError(
            f"--precision {precision} is not available for this model: it chooses regions by their "
            "scores, and what another precision chooses cannot be verified; use fp32"
        )


def why_not_in_blocks(graphs: Graphs) -> str | None:
    """Why OpenVINO's paged attention cannot decode a generator; None where it can."""
    step, admit = graphs.lowerings["step"].module, graphs.lowerings.get("admit")
    decoder = getattr(step, "decoder", None)
    if not isinstance(decoder, TransformerDecoder):
        return "its decoder is not a Transformer"
    if any(state.prefix for state in graphs.states):
        return "its caches begin with the positions of an image"
    pixels = None if admit is None else admit.graph.input(Role.PIXELS)
    has_images = pixels is not None and isinstance(pixels.shape[1], str)
    if has_images and not isinstance(step, ImageTokenStep):
        return "its layers attend to the images of prompts"
    if decoder.heads.is_prefix_lm:
        return "its prompts are read in both directions"
    if isinstance(step, ImageTokenStep) and step.has_blocks:
        return "its images are read in both directions"
    if type(decoder).position_bias is not TransformerDecoder.position_bias:
        return "its attention has a bias of relative positions"
    layers = (each for each in decoder.modules() if isinstance(each, Attention))
    if any(each.heads.soft_cap is not None for each in layers):
        return "its attention scores are capped"
    return None


def lowered(lowering: Lowering, runtime: Runtime) -> Lowering:
    """A graph's lowering for a runtime.

    OpenVINO has none of ONNX Runtime's fused operators, but for those of a generator, which it
    reads: paged attention takes the place of one of them.
    """
    is_of_generator = lowering.graph.file in GENERATOR_FILES
    is_fused = runtime is Runtime.ONNXRUNTIME or is_of_generator
    return lowering if is_fused else replace(lowering, is_fused=False)
