"""The gate's report in lines for the console."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from export.parity.verify import Report


def summary(report: Report) -> Sequence[str]:
    """The report in lines for the console."""
    lines = [
        f"{report.observations} comparisons, worst difference from float64 "
        f"{report.worst_difference:.1e} of the largest value, PyTorch's "
        f"{max(report.pytorch.values(), default=0.0):.1e}"
    ]
    if report.tokens:
        lines.append(
            f"{report.tokens['compared']} hypotheses have equal tokens, "
            f"{report.tokens['ties']} of them by a tie"
        )
    if report.int8:
        lines.append(
            "{precision}: {layers} layers and {tables} tables, cosine of scores at least "
            "{least_cosine:.4f}, {mean_cosine:.5f} on average".format_map(report.int8)
        )
        if report.int8["four_bits"]:
            lines.append("{four_bits} layers have weights of 4 bits".format_map(report.int8))
        if report.int8["cache"]:
            lines.append(
                "{cache} cache: cosine at least {cache_cosine:.4f} in int8, {cache_clipped:.1e} of "
                "keys and values clipped".format_map(report.int8)
            )
        if report.int8["rows_alone"]:
            lines.append(
                "{rows_alone} rows alone equal those in their batch, bit for bit".format_map(
                    report.int8
                )
            )
        lines += _calibration_lines(report.int8)
    return [*lines, *_cuda_lines(report.cuda), *_tensorrt_lines(report.tensorrt)]


def _cuda_lines(cuda: Mapping[str, Any]) -> list[str]:
    """What is known without a card about a bundle for one."""
    if not cuda:
        return []
    nodes = ", ".join(f"{count} in {dtype}" for dtype, count in cuda["device_nodes"].items())
    lines = [
        f"every node has a CUDA kernel: {nodes}; {cuda['host_nodes']} nodes of shape arithmetic on "
        "the host; not run on a card",
    ]
    if cuda["needs_cudnn"]:
        lines.append(f"cuDNN is needed for {', '.join(cuda['needs_cudnn'])}")
    return [*lines, *_parity_lines(cuda)]


def _tensorrt_lines(tensorrt: Mapping[str, Any]) -> list[str]:
    """What is known before a plan is built."""
    if not tensorrt:
        return []
    nodes = ", ".join(f"{count} in {dtype}" for dtype, count in tensorrt["nodes"].items())
    profiles = ", ".join(f"{count} of {key}" for key, count in tensorrt["profiles"].items())
    line = (
        f"TensorRT has an operator for every node: {nodes}; profiles: {profiles}; plans are built "
        "where they are served"
    )
    return [line, *_parity_lines(tensorrt)]


def _parity_lines(found: Mapping[str, Any]) -> list[str]:
    """What a lower precision of a GPU costs."""
    parity = found.get("parity")
    if parity is None:
        return []
    line = (
        "{precision}, {how}: cosine of scores at least {least_cosine:.5f}, {mean_cosine:.6f} on "
        "average".format_map(parity)
    )
    if parity["equal_tokens"] is not None:
        line += (
            f"; {100 * parity['equal_tokens']:.1f} % of greedy tokens are PyTorch's, texts lose at "
            f"most {max(parity['score_loss'], 0):.4f} nats a token"
        )
    return [line]


def _calibration_lines(int8: Mapping[str, Any]) -> list[str]:
    """What a user's samples were used for."""
    used = int8["calibration"]
    if used is None:
        return []
    used_by = ", ".join(
        f"{key}: {count} calibrated, {used['held_out'][key]} held out and compared"
        for key, count in used["calibrated"].items()
    )
    lines = [f"{used['found']} samples of {', '.join(used['from'])} ({used_by})"]
    if used["truncated"]:
        lines.append(f"{used['truncated']} texts were cut at the model's longest input")
    if int8["same_best"] is not None:
        lines.append(f"{100 * int8['same_best']:.1f} % of the held-out labels are the same")
    return [*lines, f"random inputs: cosine at least {int8['random_cosine']:.4f}, not required"]
