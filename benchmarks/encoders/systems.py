"""The systems under test with one interface: load a model once, encode batches.

Each runs in a process of its own with two threads. Peers prepare images with the checkpoint's own
processor of `transformers`, as their users do.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from benchmarks.encoders.models import MODELS, Inputs, Work, bundle, checkpoint
from benchmarks.harness.system import THREADS, System
from inference.bundle.manifest import Role

Arrays = dict[str, NDArray[Any]]


class Encoder(Protocol):
    """One runtime with one model."""

    def run(self, inputs: Inputs) -> NDArray[Any]:
        """The outputs of a batch."""
        ...


class Triptych:
    """Our bundle, as the Triton backend runs it."""

    def __init__(self, name: str, kind: str, cache: Path) -> None:
        from google.protobuf import json_format, text_format
        from tritonclient.grpc import model_config_pb2 as pb

        runtime, precision = kind.split("-")
        found = bundle(name, runtime, precision, cache)
        manifest = found.manifest
        self._image = manifest.image if manifest.image else None
        takes = Role.PIXELS if manifest.image else Role.TOKENS
        key, graph = next((k, g) for k, g in manifest.graphs.items() if g.input(takes))
        folder = found.folder.parents[1] / manifest.parts[key]
        message = text_format.Parse((folder / "config.pbtxt").read_text(), pb.ModelConfig())
        config = json_format.MessageToDict(
            message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
        )
        file = folder / found.folder.name / graph.file
        self._sessions: Any
        if runtime == "openvino":
            from inference.stateless.compiled_graphs import CompiledGraphs

            self._sessions = CompiledGraphs(file, config)
        else:
            from inference.stateless.graph_sessions import GraphSessions

            self._sessions = GraphSessions(file, config)
        self._names = {port.role: port.name for port in graph.inputs}
        self._output = graph.outputs[0].name

    def run(self, inputs: Inputs) -> NDArray[Any]:
        ids = inputs
        if not isinstance(ids, list) and ids.ndim == 2:
            lengths = np.full(len(ids), ids.shape[1], np.int32)
            feeds = {Role.TOKENS: ids, Role.LENGTHS: lengths, Role.SEGMENTS: np.zeros_like(ids)}
        else:
            feeds = {Role.PIXELS: self._pixels(inputs)}
        named = {self._names[role]: value for role, value in feeds.items() if role in self._names}
        found: NDArray[Any] = self._sessions.run([self._output], named)[self._output]
        return found

    def _pixels(self, inputs: Inputs) -> NDArray[np.uint8]:
        if not isinstance(inputs, list):
            return inputs
        from inference.processing.image import decode_image, prepare_image

        return np.stack([prepare_image(decode_image(p), self._image) for p in inputs])


class Prepared:
    """Inputs as `transformers` names them, for the peers."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._processor: Any = None

    def __call__(self, inputs: Inputs) -> Arrays:
        """`input_ids` and `attention_mask`, or `pixel_values`."""
        if not isinstance(inputs, list):
            if inputs.ndim == 2:
                return {"input_ids": inputs, "attention_mask": np.ones_like(inputs)}
            return {"pixel_values": inputs.transpose(0, 3, 1, 2).astype(np.float32) / 127.5 - 1}
        if self._processor is None:
            from transformers import AutoImageProcessor

            self._processor = AutoImageProcessor.from_pretrained(
                self._folder, trust_remote_code=False
            )
        images = [Image.open(io.BytesIO(photo)).convert("RGB") for photo in inputs]
        return {"pixel_values": self._processor(images, return_tensors="np")["pixel_values"]}


def network(name: str, folder: Path, dtype: Any) -> Any:
    """The model of `transformers` as a module: inputs by keyword → the tensor of interest."""
    import torch
    import transformers

    kind = getattr(transformers, MODELS[name].model)
    model = kind.from_pretrained(folder, dtype=dtype).eval()

    class Text(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids: Any, attention_mask: Any) -> Any:
            hidden = self.model(input_ids=input_ids, attention_mask=attention_mask)[0]
            mask = attention_mask[..., None].to(hidden.dtype)
            mean = (hidden * mask).sum(1) / mask.sum(1)
            return torch.nn.functional.normalize(mean, dim=-1)

    class Image(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model.vision_model if name == "clip-b32" else model
            self.projection = model.visual_projection if name == "clip-b32" else None

        def forward(self, pixel_values: Any) -> Any:
            found = self.model(pixel_values=pixel_values)
            if self.projection is None:
                return found.logits
            return torch.nn.functional.normalize(self.projection(found.pooler_output), dim=-1)

    return Text() if MODELS[name].lengths else Image()


class Transformers:
    """`transformers` with PyTorch."""

    def __init__(self, name: str, kind: str, cache: Path) -> None:
        import torch

        torch.set_num_threads(THREADS)
        self._dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[kind]
        folder = checkpoint(name, cache)
        self._prepared, self._network = Prepared(folder), network(name, folder, self._dtype)

    def run(self, inputs: Inputs) -> NDArray[Any]:
        import torch

        inputs = {name: torch.from_numpy(value) for name, value in self._prepared(inputs).items()}
        if "pixel_values" in inputs:
            inputs["pixel_values"] = inputs["pixel_values"].to(self._dtype)
        with torch.inference_mode():
            found: NDArray[Any] = self._network(**inputs).float().numpy()
        return found


class OpenVino:
    """OpenVINO as Optimum Intel uses it: the model converted, int8 by NNCF's transformer preset."""

    def __init__(self, name: str, kind: str, cache: Path) -> None:
        import openvino

        from export.quantization.quantize_static import switch_telemetry_off

        switch_telemetry_off()
        folder = checkpoint(name, cache)
        self._prepared = Prepared(folder)
        file = cache / "openvino" / f"{name}-{'int8' if kind == 'int8' else 'fp32'}.xml"
        if not file.is_file():
            file.parent.mkdir(parents=True, exist_ok=True)
            openvino.save_model(self._converted(name, kind, folder), file, compress_to_fp16=False)
        options = {"INFERENCE_NUM_THREADS": THREADS, "PERFORMANCE_HINT": "LATENCY"}
        options["INFERENCE_PRECISION_HINT"] = "f32" if kind == "fp32" else "bf16"
        compiled = openvino.Core().compile_model(file, "CPU", options)
        self._request = compiled.create_infer_request()

    def run(self, inputs: Inputs) -> NDArray[Any]:
        return np.asarray(self._request.infer(self._prepared(inputs), share_inputs=True)[0])

    def _converted(self, name: str, kind: str, folder: Path) -> Any:
        import nncf
        import openvino
        import torch

        is_text = bool(MODELS[name].lengths)
        works = [
            Work("text" if is_text else "pixels", 1, tokens=length, seed=seed)
            for length in (MODELS[name].lengths or (0,))
            for seed in range(32)
        ]
        example = {k: torch.from_numpy(v) for k, v in self._prepared(works[0].inputs()).items()}
        model = openvino.convert_model(network(name, folder, torch.float32), example_input=example)
        shapes = {"input_ids": [-1, -1], "attention_mask": [-1, -1]}
        model.reshape(shapes if is_text else {"pixel_values": [-1, 3, 224, 224]})
        if kind != "int8":
            return model
        return nncf.quantize(
            model,
            nncf.Dataset([self._prepared(work.inputs()) for work in works]),
            model_type=nncf.ModelType.TRANSFORMER,
            subset_size=len(works),
        )


class OnnxRuntime:
    """ONNX Runtime on a plain export of the model in float32, as Optimum does by default."""

    def __init__(self, name: str, kind: str, cache: Path) -> None:
        import onnxruntime

        assert kind == "fp32"
        folder = checkpoint(name, cache)
        self._prepared = Prepared(folder)
        file = cache / "onnxruntime" / f"{name}.onnx"
        if not file.is_file():
            self._export(name, folder, file)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = THREADS
        self._session = onnxruntime.InferenceSession(file, options)

    def run(self, inputs: Inputs) -> NDArray[Any]:
        found: NDArray[Any] = self._session.run(None, self._prepared(inputs))[0]
        return found

    def _export(self, name: str, folder: Path, file: Path) -> None:
        import torch
        from torch.export import Dim

        file.parent.mkdir(parents=True, exist_ok=True)
        is_text = bool(MODELS[name].lengths)
        work = Work("text" if is_text else "pixels", 2, tokens=7)
        inputs = {k: torch.from_numpy(v) for k, v in self._prepared(work.inputs()).items()}
        axes = {0: Dim.DYNAMIC, 1: Dim.DYNAMIC} if is_text else {0: Dim.DYNAMIC}
        torch.onnx.export(
            network(name, folder, torch.float32),
            kwargs=inputs,
            f=str(file),
            dynamo=True,
            dynamic_shapes=dict.fromkeys(inputs, axes),
            external_data=False,
            verbose=False,
        )


RUNTIMES: dict[str, Callable[[str, str, Path], Encoder]] = {
    "triptych": Triptych,
    "transformers": Transformers,
    "openvino": OpenVino,
    "onnxruntime": OnnxRuntime,
}


def load(system: System, model: str, cache: Path) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """What encodes a batch and times it, for the harness's worker; `save` is a file or null."""
    encoder = RUNTIMES[system.runtime](model, system.precision, cache)

    def run(asked: dict[str, Any]) -> dict[str, Any]:
        inputs = Work(**asked["work"]).inputs()
        started_s = time.perf_counter()
        outputs = encoder.run(inputs)
        spent_s = time.perf_counter() - started_s
        if asked["save"]:
            np.save(asked["save"], outputs)
        return {"seconds": spent_s}

    return run
