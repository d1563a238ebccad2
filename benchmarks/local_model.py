"""Bundles that answer in this process: over PyTorch, or over their ONNX graphs without Triton."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Mapping
from pathlib import Path

import onnxruntime
import torch

from export.architecture import Graphs, Lowering
from export.graphs.source_model import SourceModel
from export.parity.graph_runs import LazySessions
from export.parity.torch_runner import TorchRunner
from export.pipeline.publish import publish, staging
from export.precision import Precision, Runtime
from export.quantization.calibrate import cache_scales
from export.quantization.quantize import quantize
from export.quantization.quantize_cache import quantize_cache
from export.quantization.quantize_weights import quantize_weights
from inference.bundle.manifest import Bundle
from inference.bundle.reader import newest_bundle
from inference.engine.runners.ort.runner import OrtRunner
from inference.tasks.shared.model_calls import Array
from serving.local_model import Infer, LocalModel


def lowered(
    original: Bundle,
    precision: Precision,
    repository: Path,
    runtime: Runtime = Runtime.ONNXRUNTIME,
) -> Bundle:
    """Copies every part, rewrites its graph, publishes it into another repository.

    Args:
        runtime: OpenVINO decodes the graphs of generators that ONNX Runtime decodes.
    """
    update = {"precision": precision.value, "runtime": runtime.in_manifest}
    manifest = original.manifest.model_copy(update=update)
    is_openvino = runtime is Runtime.OPENVINO
    source = original.folder.parent.parent
    with staging(repository) as stage:
        for part in manifest.parts.values():
            folder = source / part / original.folder.name
            shutil.copytree(folder, stage.part(part), dirs_exist_ok=True)
        files = {
            key: stage.part(manifest.parts.get(key, manifest.name)) / graph.file
            for key, graph in manifest.graphs.items()
        }
        scales = {} if is_openvino else cache_scales(manifest, LazySessions(files))
        rewritten = {} if precision in (Precision.FP32, Precision.BF16) else files
        for key, file in reversed(rewritten.items()):  # later graphs read files of earlier ones
            if is_openvino:
                quantize_weights(key, file, precision)
            else:
                quantize(file, precision)
        if scales:
            manifest = quantize_cache(files["step"], manifest, scales)
        publish(stage, repository, manifest)
    return newest_bundle(repository, manifest.name)


THREADS = 2


def torch_model(checkpoint: Path, bundle: Bundle) -> LocalModel:
    """A checkpoint's PyTorch modules behind its bundle's tasks."""
    manifest = bundle.manifest
    graphs = torch_graphs(checkpoint, has_attention="attention" in manifest.parts)
    if "step" in graphs.lowerings:
        return LocalModel(bundle, TorchRunner(graphs, manifest), {})
    modules = {
        manifest.parts[key]: torch_infer(lowering) for key, lowering in graphs.lowerings.items()
    }
    return LocalModel(bundle, None, modules)


def onnx_model(repository: Path, bundle: Bundle) -> LocalModel:
    """A bundle's ONNX graphs, as they are in the repository."""
    manifest = bundle.manifest
    if "step" in manifest.graphs:
        return LocalModel(bundle, OrtRunner(bundle, threads=THREADS), {})
    sessions = {
        part: onnx_infer(repository / part / str(manifest.version) / manifest.graphs[key].file)
        for key, part in manifest.parts.items()
    }
    return LocalModel(bundle, None, sessions)


def torch_graphs(checkpoint: Path, *, has_attention: bool = False) -> Graphs:
    """The modules that `triptych export` would export, weights loaded."""
    return SourceModel.open(checkpoint).graphs(has_attention=has_attention)


def torch_infer(lowering: Lowering) -> Infer:
    """A module that takes its graph's inputs in their order, and returns its outputs."""

    @torch.no_grad()
    def infer(outputs: Collection[str], inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        given = [torch.from_numpy(inputs[tensor.name]) for tensor in lowering.graph.inputs]
        found = lowering.module(*given)
        returned = (found,) if isinstance(found, torch.Tensor) else found
        names = [tensor.name for tensor in lowering.graph.outputs]
        return {name: each.numpy() for name, each in zip(names, returned, strict=True)}

    return infer


def onnx_infer(file: Path) -> Infer:
    """A session over one file."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = THREADS
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])

    def infer(outputs: Collection[str], inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        return dict(zip(outputs, session.run(list(outputs), dict(inputs)), strict=True))

    return infer
