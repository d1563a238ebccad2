"""The files whose functions run for one request, in gateway and model process (`pytest -s`).

The request passes the whole stack but for uvicorn and Triton itself: our HTTP application, a real
gRPC connection, and the backend with a real engine in another thread.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any
from unittest.mock import MagicMock

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import deserialize_bytes_tensor, triton_to_np_dtype

from inference.bundle.manifest import Bundle
from inference.generation import Generation
from serving.gateway.observability.metrics import Metrics
from serving.gateway.requests.catalog import Catalog
from serving.gateway.requests.health import Readiness
from serving.gateway.requests.service import Service
from serving.gateway.server.app import create_app
from serving.gateway.triton_client.endpoint import Address
from serving.gateway.triton_client.pool import TritonPool
from serving.load_model import load_model
from serving.settings.gateway_settings import GatewaySettings
from tests.inference.engine.toy_bundles import attention_bundle
from tests.serving.gateway.conftest import http_client
from tests.serving.gateway.triton_client.test_triton import response
from tests.serving.versioned_bundles import TOKENIZER, tokenizer_file

ROOT = Path(__file__).parents[2]
PACKAGES = tuple(str(ROOT / name) for name in ("serving", "inference", "clients"))
MOST_FILES = 45
"""Of both processes together, those that both pass counted once."""


@dataclass
class Tensor:
    """A tensor of Triton's Python backend."""

    name: str
    array: np.ndarray

    def as_numpy(self) -> np.ndarray:
        return self.array


class BackendRequest:
    """A request as Triton passes it to `execute`; responses go to a queue of the event loop."""

    def __init__(self, message: Any) -> None:
        self._message = message
        self._loop = asyncio.get_running_loop()
        self.responses: asyncio.Queue[Any] = asyncio.Queue()
        tensors = zip(message.inputs, message.raw_input_contents, strict=True)
        self.tensors = {one.name: Tensor(one.name, array_of(one, raw)) for one, raw in tensors}

    def request_id(self) -> str:
        return self._message.id

    def parameters(self) -> str:
        return json.dumps(dict.fromkeys(self._message.parameters, True))

    def get_response_sender(self) -> BackendRequest:
        return self

    def is_cancelled(self) -> bool:
        return False

    def send(self, tensors: list[Tensor], flags: int) -> None:
        answer = response(**{one.name: one.array for one in tensors})
        answer.id = self._message.id
        self._loop.call_soon_threadsafe(self.responses.put_nowait, answer)


def array_of(tensor: Any, raw: bytes) -> np.ndarray:
    if tensor.datatype == "BYTES":
        return deserialize_bytes_tensor(raw).reshape(tensor.shape)
    return np.frombuffer(raw, triton_to_np_dtype(tensor.datatype)).reshape(tensor.shape)


def python_backend() -> ModuleType:
    """What Triton's Python backend provides."""
    module: Any = ModuleType("triton_python_backend_utils")
    module.MetricFamily = module.Logger = MagicMock()
    module.TRITONSERVER_RESPONSE_COMPLETE_FINAL = 1
    module.Tensor = Tensor
    module.InferenceResponse = list
    module.get_input_tensor_by_name = lambda request, name: request.tensors.get(name)
    return module


class Triton(service_pb2_grpc.GRPCInferenceServiceServicer):
    """Passes streamed requests to a model, in a thread as Triton does."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._thread = ThreadPoolExecutor(1)

    async def ModelStreamInfer(self, requests: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        async for message in requests:
            request = BackendRequest(message)
            self._thread.submit(self._model.execute, [request])
            is_final = False
            while not is_final:
                answer = await request.responses.get()
                is_final = answer.parameters["triton_final_response"].bool_param
                yield service_pb2.ModelStreamInferResponse(infer_response=answer)


class Recorder:
    """The files of ours whose functions are called, in the order of their first calls."""

    def __init__(self) -> None:
        self.is_on = False
        self.gateway: dict[str, None] = {}
        self.model: dict[str, None] = {}
        self._loop_thread = threading.get_ident()

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        name = frame.f_code.co_filename
        if self.is_on and event == "call" and name.startswith(PACKAGES):
            is_gateway = threading.get_ident() == self._loop_thread
            files = self.gateway if is_gateway else self.model
            files.setdefault(str(Path(name).relative_to(ROOT)))


@contextmanager
def recording() -> Iterator[Recorder]:
    recorder, before = Recorder(), sys.getprofile()
    threading.setprofile(recorder)
    sys.setprofile(recorder)
    try:
        yield recorder
    finally:
        sys.setprofile(before)
        threading.setprofile(None)  # type: ignore[arg-type]


def translator(repository: Path) -> Bundle:
    bundle = attention_bundle(repository)
    generation = Generation(
        decoder_start_ids=(0,), eos_token_ids=(1,), pad_token_id=0, max_new_tokens=8
    )
    changes = {"generation": generation, "tokenizer": TOKENIZER}
    manifest = bundle.manifest.model_copy(update=changes)
    file = bundle.folder / TOKENIZER.files["tokenizer"]
    file.write_text(json.dumps(tokenizer_file()), encoding="utf-8")
    (bundle.folder / "bundle.json").write_text(manifest.model_dump_json(), encoding="utf-8")
    return Bundle(bundle.folder, manifest)


def arguments(bundle: Bundle) -> dict[str, str]:
    config = {"parameters": {"self_check": {"string_value": "off"}}}
    return {
        "model_repository": str(bundle.folder.parent),
        "model_version": bundle.folder.name,
        "model_name": bundle.manifest.name,
        "model_instance_kind": "CPU",
        "model_config": json.dumps(config),
    }


async def translate_twice(bundle: Bundle, model: Any, recorder: Recorder) -> None:
    """Record a second request: the first one makes what is made once."""
    server = grpc.aio.server()
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(Triton(model), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    settings, metrics = GatewaySettings(), Metrics()
    pool = TritonPool([Address(f"127.0.0.1:{port}")], metrics)
    service = Service(Catalog([load_model(bundle)], settings.task_limits), pool, settings, metrics)
    app = create_app(service, Readiness(service, lambda: pool.endpoints))
    async with http_client(app) as http:
        for is_on in (False, True):
            recorder.is_on = is_on
            answer = await http.post("/v1/translate", json={"texts": "v4 v9 v2"})
            recorder.is_on = False
            assert answer.json()["usage"] == {"prompt_tokens": 3, "completion_tokens": 8}
    await service.close()
    await server.stop(0)


def test_a_translation_passes_few_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", python_backend())
    for name in [name for name in sys.modules if name.startswith("serving.backends")]:
        monkeypatch.delitem(sys.modules, name)
    from serving.backends.autoregressive.model import TritonPythonModel

    for name in ("log_to_triton", "Heartbeat"):
        monkeypatch.setattr(f"serving.backends.autoregressive.model.{name}", MagicMock())
    bundle, model = translator(tmp_path), TritonPythonModel()
    with recording() as recorder:
        model.initialize(arguments(bundle))
        asyncio.run(translate_twice(bundle, model, recorder))
        model.finalize()
    files = {**recorder.gateway, **recorder.model}
    for place, passed in (("gateway", recorder.gateway), ("model process", recorder.model)):
        print(f"\n{place}: {len(passed)} files", *passed, sep="\n  ")
    print(f"together: {len(files)} files")
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    _, _, section = page.partition("### A request\n")
    steps = section.partition("\n### ")[0]
    described = set(re.findall(r"^\| \d \| `([^`]+\.py)`", steps, re.MULTILINE))
    assert len(described) == 8
    assert described <= files.keys()
    assert len(files) <= MOST_FILES
