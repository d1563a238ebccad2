"""A bundle that answers tasks' calls in this process: over PyTorch, or over its ONNX graphs.

The tasks, tokenizers and search are those of serving; only Triton and the gateway are missing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnxruntime
import torch
from numpy.typing import NDArray

from export.architecture import Graphs
from export.checkpoint import load, open_checkpoint
from export.manifest import preprocessing
from export.registry import architecture
from export.torch_runner import TorchRunner
from serving.bundle import Bundle
from serving.codec import PIXELS, PROMPT_IDS, SOURCE_IDS
from serving.engine.decoder import decode
from serving.engine.request import EngineRequest, Finished
from serving.engine.runners.ort.runner import OrtRunner
from serving.engine.runners.protocol import Runner
from serving.loading import load_model
from serving.planning.calls import Array, Call, GenerateCall, Generated, Outcome
from serving.planning.loaded_model import LoadedModel

THREADS = 2
Infer = Callable[[Mapping[str, Array]], NDArray[np.float32]]


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
            next(decoded)
            if isinstance(call, GenerateCall)
            else dict.fromkeys(call.outputs.values(), self._graphs[call.model](call.inputs))
            for call in calls
        ]

    def _generate(self, calls: Sequence[GenerateCall]) -> list[Generated]:
        if not calls:
            return []
        assert self._runner is not None
        return [as_generated(answer) for answer in decode(self._runner, map(self._request, calls))]

    def _request(self, call: GenerateCall) -> EngineRequest:
        prompt = call.inputs.get(PROMPT_IDS, np.zeros(0, np.int64))
        return EngineRequest(
            rules=self.model.generation.with_overrides(call.options),
            source_ids=call.inputs.get(SOURCE_IDS),
            pixels=call.inputs.get(PIXELS),
            prompt_ids=tuple(prompt.tolist()),
        )


def as_generated(answer: Finished) -> Generated:
    """The engine's answer as the tasks take it."""
    return Generated(
        sequences=tuple(hypothesis.token_ids for hypothesis in answer.hypotheses),
        scores=tuple(hypothesis.score for hypothesis in answer.hypotheses),
        finish_reasons=tuple(hypothesis.finish_reason for hypothesis in answer.hypotheses),
    )


def torch_model(checkpoint: Path, bundle: Bundle) -> LocalModel:
    """A checkpoint's PyTorch modules behind its bundle's tasks."""
    graphs = torch_graphs(checkpoint)
    manifest = bundle.manifest
    if "step" in graphs.lowerings:
        return LocalModel(bundle, TorchRunner(graphs, manifest), {})
    modules = {
        manifest.parts[key]: torch_infer(lowering.module)
        for key, lowering in graphs.lowerings.items()
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


def torch_graphs(checkpoint: Path) -> Graphs:
    """The modules that `triptych export` would export, weights loaded."""
    read = open_checkpoint(str(checkpoint))
    declared = architecture(read.config.get("model_type"))
    config = declared.read_config(read.config)
    network = declared.build(config).eval()
    load(network, read, declared.rename(config))
    return declared.graphs(network, preprocessing(declared, read).image)


def torch_infer(module: torch.nn.Module) -> Infer:
    """A module whose arguments are the graph's inputs in their order."""

    @torch.no_grad()
    def infer(inputs: Mapping[str, Array]) -> NDArray[np.float32]:
        embedding: NDArray[np.float32] = module(
            *(torch.from_numpy(array) for array in inputs.values())
        ).numpy()
        return embedding

    return infer


def onnx_infer(file: Path) -> Infer:
    """A session over one file with one output."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = THREADS
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])

    def infer(inputs: Mapping[str, Array]) -> NDArray[np.float32]:
        embedding: NDArray[np.float32] = session.run(None, dict(inputs))[0]
        return embedding

    return infer
