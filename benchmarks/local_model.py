"""A bundle that answers tasks' calls in this process: over PyTorch, or over its ONNX graphs.

The tasks, tokenizers and search are those of serving; only Triton and the gateway are missing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import onnxruntime
import torch

from export.architecture import Graphs, Lowering
from export.graphs.source_model import SourceModel
from export.parity.torch_runner import TorchRunner
from inference.bundle.manifest import Bundle
from inference.engine.codec import PIXELS, PROMPT_IDS, SOURCE_IDS
from inference.engine.engine_core import decode
from inference.engine.runners.ort.runner import OrtRunner
from inference.engine.runners.protocol import Runner
from inference.engine.search.request import EngineRequest
from inference.processing.words import WordEdges
from inference.sequences import Finished
from inference.tasks.shared.loaded_model import LoadedModel
from inference.tasks.shared.model_calls import (
    Array,
    Call,
    GenerateCall,
    InferCall,
    Outcome,
    Outputs,
)
from serving.load_model import load_model

THREADS = 2
Infer = Callable[[Mapping[str, Array]], Mapping[str, Array]]
"""Inputs of a graph → all its outputs, both by name."""


class LocalModel:
    """One bundle with everything that its calls need.

    Args:
        bundle: For its manifest and tokenizer.
        runner: Answers generator calls; None for stateless bundles.
        graphs: Triton model → what answers its calls; empty for generators.
    """

    def __init__(self, bundle: Bundle, runner: Runner | None, graphs: Mapping[str, Infer]) -> None:
        self.model: LoadedModel = load_model(bundle)
        self._runner = runner
        self._graphs = graphs

    def answer(self, calls: Sequence[Call]) -> list[Outcome]:
        """One outcome a call, in order; generator calls are decoded together."""
        generate = [call for call in calls if isinstance(call, GenerateCall)]
        decoded = iter(self._generate(generate))
        return [
            next(decoded) if isinstance(call, GenerateCall) else self._infer(call) for call in calls
        ]

    def _infer(self, call: InferCall) -> Outputs:
        found = self._graphs[call.model](call.inputs)
        return {role: found[name] for name, role in call.outputs.items()}

    def _generate(self, calls: Sequence[GenerateCall]) -> list[Finished]:
        if not calls:
            return []
        assert self._runner is not None
        return decode(self._runner, map(self._request, calls))

    def _request(self, call: GenerateCall) -> EngineRequest:
        prompt = call.inputs.get(PROMPT_IDS, np.zeros(0, np.int64))
        return EngineRequest(
            rules=self.model.generation.with_overrides(call.options),
            source_ids=call.inputs.get(SOURCE_IDS),
            pixels=call.inputs.get(PIXELS),
            prompt_ids=tuple(prompt.tolist()),
            word_edges=self._word_edges if call.options.force_words_ids else None,
        )

    @cached_property
    def _word_edges(self) -> WordEdges:
        size = self.model.manifest.vocabulary_size
        assert size is not None
        return WordEdges.of(self.model.tokenizer, size)


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
    def infer(inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        given = [torch.from_numpy(inputs[tensor.name]) for tensor in lowering.graph.inputs]
        found = lowering.module(*given)
        outputs = (found,) if isinstance(found, torch.Tensor) else found
        names = [tensor.name for tensor in lowering.graph.outputs]
        return {name: each.numpy() for name, each in zip(names, outputs, strict=True)}

    return infer


def onnx_infer(file: Path) -> Infer:
    """A session over one file."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = THREADS
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]

    def infer(inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        return dict(zip(names, session.run(names, dict(inputs)), strict=True))

    return infer
