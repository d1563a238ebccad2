"""A gateway over an in-memory `Inference`, called through ASGI: no socket, no Triton."""

import asyncio
import base64
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import cache
from typing import Any, ClassVar

import httpx
import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.types import ASGIApp

from inference.bundle.manifest import Limits, Manifest, Role
from inference.errors import ServingError, Unavailable
from inference.generation import Finished, Generation, TokenChunk
from inference.tasks.shared.loaded_model import LoadedModel
from inference.tasks.shared.model_calls import Array, GenerateCall, InferCall, Outputs
from serving.gateway.dialects.libretranslate import exchange, files
from serving.gateway.http import openapi, routes
from serving.gateway.observability.metrics import Metrics
from serving.gateway.requests.catalog import Catalog
from serving.gateway.requests.health import Readiness
from serving.gateway.requests.service import Service
from serving.gateway.server import app
from serving.gateway.server.app import create_app
from serving.gateway.triton_client.endpoint import Address
from serving.gateway.triton_client.pool import TritonPool
from serving.gateway.triton_client.triton_inference import GONE, Liveness
from serving.liveness.stall_detector import EngineStats
from serving.process_pool.process import Process, Slot, WorkLimits
from serving.settings.gateway_settings import GatewaySettings
from tests.inference.tiny_models import (
    IMAGE,
    WordTokenizer,
    cross_encoder,
    embedded,
    finished,
    image_classifier,
    image_file,
    manifest,
    mask_filler,
    passage_reader,
    run,
    served,
    text_classifier,
    two_towers,
    word_labeller,
)
from tests.serving.waiting import until


class FakeInference:
    """Responds at once: generators repeat their input, or "picture"; encoders average."""

    def __init__(self) -> None:
        self.calls: list[GenerateCall | InferCall] = []
        self.unloaded: set[str] = set()
        self.served: dict[str, int] = {}
        """Versions that Triton serves, by model; none is known of the others."""
        self.retired: set[tuple[str, int]] = set()
        """Versions that Triton had and has no more, by model."""
        self.failures: dict[str, ServingError] = {}
        self.refusing: Callable[[GenerateCall | InferCall], ServingError | None] = lambda call: None
        """The failure of a call that no other failure is for."""
        self.hold: asyncio.Event | None = None
        """While set and unset in turn: calls wait for it."""
        self.steps: asyncio.Semaphore | None = None
        """Where there is one, each token of a stream takes one of it."""
        self.breaks: dict[int, ServingError] = {}
        """A stream's failure after so many tokens."""
        self.running = 0
        self.cancelled = 0
        self.most_running = 0
        self.is_closed = False

    async def generate(self, call: GenerateCall, timeout_s: float) -> Finished:
        async with self._work(call):
            pass
        return self._generated(call)

    async def stream(
        self, call: GenerateCall, timeout_s: float
    ) -> AsyncGenerator[TokenChunk | Finished, None]:
        async with self._work(call):
            whole = self._generated(call)
            for place in range(len(whole.best.token_ids)):
                if place in self.breaks:
                    raise self.breaks.pop(place)
                if self.steps is not None:
                    await self.steps.acquire()
                tokens = whole.best.tokens[place : place + 1]
                yield replace(tokens, is_last=place == len(whole.best.token_ids) - 1)
            yield whole

    def _generated(self, call: GenerateCall) -> Finished:
        ids = call.inputs.get("source_ids")
        if ids is None and "pixels" not in call.inputs:
            ids = call.inputs["prompt_ids"]
        sequence = tuple(ids.tolist()) if ids is not None else (3, 1)
        count = call.options.num_return_sequences or 1
        scores = tuple(-0.5 - rank for rank in range(count))
        wanted = call.options.top_log_probs
        best = ((4, -0.25), (5, -1.5))[: wanted or 0]
        return finished(
            (sequence,) * count,
            scores,
            ("stop",) * count,
            call.prompt_tokens,
            log_probs=() if wanted is None else ((-0.25,) * len(sequence),) * count,
            top=() if wanted is None else ((best,) * len(sequence),) * count,
            alignments=(self._alignment(call, len(sequence)),) * count
            if call.options.return_alignment
            else (),
        )

    def _alignment(self, call: GenerateCall, rows: int) -> Array:
        columns = call.inputs["source_ids"].size if "source_ids" in call.inputs else 5
        return np.full((rows + 1, columns), 1 / columns, np.float32)  # a row of padding

    async def infer(self, call: InferCall, timeout_s: float) -> Outputs:
        async with self._work(call):
            pass
        if Role.EMBEDDING not in call.outputs.values():
            return run(call)
        if "texts" in call.inputs:
            vectors = call.inputs["texts"] * call.inputs["patches"]
        elif "pixels" in call.inputs:
            pixels = call.inputs["pixels"]
            vectors = pixels.mean(axis=tuple(range(1, pixels.ndim - 1))) + 1.0
        else:
            rows = call.inputs["token_ids"].sum(axis=1).astype(float)
            vectors = np.stack([rows, np.ones_like(rows), -rows], axis=1)
        outputs = {role: embedded(vectors) for role in call.outputs.values()}
        if Role.HIDDEN in outputs:
            outputs[Role.HIDDEN] = outputs[Role.HIDDEN][:, None]
        return outputs

    async def is_ready(self, model: str, version: int) -> bool:
        return model not in self.unloaded and (model, version) not in self.retired

    async def served_version(self, model: str) -> int | None:
        return self.served.get(model)

    async def liveness(self) -> Liveness:
        return Liveness.LIVE

    def end_calls(self) -> None:
        raise AssertionError("no server is lost here")

    async def incarnation(self, model: str) -> str | None:
        return GONE if model in self.unloaded else "0"

    async def close(self) -> None:
        self.is_closed = True

    @asynccontextmanager
    async def _work(self, call: GenerateCall | InferCall) -> AsyncIterator[None]:
        self.calls.append(call)
        if failure := self.failures.get(call.model) or self.refusing(call):
            raise failure
        if (call.model, call.version) in self.retired:
            refusal = Unavailable(f"{call.model} is not up", retry_after_s=1)
            refusal.is_not_loaded = True
            raise refusal
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            if self.hold is not None:
                await self.hold.wait()
            yield
        except (asyncio.CancelledError, GeneratorExit):
            self.cancelled += 1
            raise
        finally:
            self.running -= 1


RED = base64.b64encode(image_file("red")).decode()
"""A picture in the JSON of a request."""
GREEDY = Generation(pad_token_id=0, max_new_tokens=20)


def loaded(task: str, section: dict[str, object] | None = None, **fields: object) -> LoadedModel:
    return _with_tokenizer(manifest(task, section, **fields))


def _with_tokenizer(described: Manifest) -> LoadedModel:
    tokenizer = WordTokenizer()
    tokenizer.encode("picture")  # word 3
    return served(described, tokenizer)


def all_models() -> list[LoadedModel]:
    return [
        loaded("translate", {"languages": [("es", "en")]}),
        loaded("caption", image=IMAGE, limits=Limits(max_total_tokens=16)),
        _with_tokenizer(two_towers()),
        loaded("generate", generation=GREEDY),
    ]


def text_models() -> list[LoadedModel]:
    """A model of each task that is no generator's and no embedding's."""
    return [
        _with_tokenizer(made)
        for made in (
            text_classifier(),
            image_classifier().model_copy(update={"name": "tiny-pictures"}),
            mask_filler("picture"),
            word_labeller(),
            cross_encoder(),
            passage_reader(),
        )
    ]


def http_client(app: ASGIApp) -> httpx.AsyncClient:
    """A client of an application in this process; its bugs become responses."""
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://gateway")


ReadStats = Callable[[], Awaitable[dict[str, EngineStats]]]


class FakeStats:
    """The statistics of a server's engines; there are none unless a test gives some."""

    def __init__(self, read: ReadStats | None = None) -> None:
        self._read = read

    async def read(self) -> dict[str, EngineStats]:
        return await self._read() if self._read else {}

    async def close(self) -> None:
        pass


def pool_of(inference: FakeInference, metrics: Metrics) -> TritonPool:
    """The fake as the only server of a pool."""
    return TritonPool([Address("127.0.0.1:1")], metrics, connect=lambda address: inference)


class Gateway:
    """A service over the fake, and an HTTP client."""

    def __init__(self, models: list[LoadedModel], **settings: object) -> None:
        self.inference = FakeInference()
        self.settings = GatewaySettings(**{"recovery_timeout": 0, **settings})
        metrics = Metrics()
        self.pool = pool_of(self.inference, metrics)
        catalog = Catalog(models, self.settings.task_limits)
        self.service = Service(catalog, self.pool, self.settings, metrics)
        self.readiness = self.checked(keep_s=0)
        self.app = create_app(self.service, self.readiness)
        self.http = http_client(self.app)

    def checked(self, read_stats: ReadStats | None = None, *args: Any, **kwargs: Any) -> Readiness:
        """The check of its readiness, with the statistics of Triton's engines."""
        self.pool.endpoints[0].stats = FakeStats(read_stats)
        return Readiness(self.service, lambda: self.pool.endpoints, *args, **kwargs)

    def word(self, number: int) -> str:
        """A token of the tiny generator."""
        (model,) = (m for m in self.service.catalog.models if "generate" in m.sections)
        return model.tokenizer.pieces([number])[0]

    async def held(self, *args: Any, **fields: Any) -> asyncio.Task[httpx.Response]:
        """A POST whose call has begun; calls end when `inference.hold` is set."""
        self.inference.hold = self.inference.hold or asyncio.Event()
        before = self.inference.running
        request = asyncio.create_task(self.http.post(*args, **fields))
        await until(lambda: self.inference.running > before)
        return request

    async def post(self, path: str, status: int = 200, **request: Any) -> httpx.Response:
        """The response to a POST, which has this status."""
        return _expect(status, await self.http.post(path, **request))

    async def get(self, path: str, status: int = 200, **request: Any) -> httpx.Response:
        """The response to a GET, which has this status."""
        return _expect(status, await self.http.get(path, **request))

    async def put(self, path: str, status: int = 200, **request: Any) -> httpx.Response:
        """The response to a PUT, which has this status."""
        return _expect(status, await self.http.put(path, **request))

    @property
    def exposed(self) -> str:
        """The metrics, as Prometheus reads them."""
        return self.service.metrics.exposition().decode()

    @property
    def samples(self) -> dict[tuple[Any, ...], float]:
        """The metrics by name and sorted labels."""
        return {
            (sample.name, *sorted(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(self.exposed)
            for sample in family.samples
        }

    async def close(self) -> None:
        await self.http.aclose()
        await self.service.close()


def _expect(status: int, response: httpx.Response) -> httpx.Response:
    assert response.status_code == status, response.text
    return response


class LentSlot(Slot):
    """A slot whose process is kept for the next gateway: each takes a second to start."""

    kept: ClassVar[list[tuple[WorkLimits, Process]]] = []
    lock: ClassVar[threading.Lock] = threading.Lock()
    starter: ClassVar[ThreadPoolExecutor]
    """Its thread lives as long as the processes, which end with the one that started them."""
    is_busy = False

    def _make_process(self) -> Process:
        with self.lock:
            for number, (limits, process) in enumerate(self.kept):
                if limits == self._limits and process.is_usable:
                    del self.kept[number]
                    return process
        return self.starter.submit(Process, self._limits).result()

    def run(self, function: Callable[..., object], arguments: Sequence[object]) -> object:
        self.is_busy = True
        try:
            return super().run(function, arguments)
        finally:
            self.is_busy = False

    def close(self) -> None:
        if self._process is not None and not self.is_busy and self._process.is_usable:
            self.kept.append((self._limits, self._process))
            self._process = None
        super().close()


@pytest.fixture(scope="session", autouse=True)
def lent_processes() -> Iterator[None]:
    assert "_make_process" in vars(Slot)  # else each gateway would start processes of its own
    LentSlot.starter = ThreadPoolExecutor(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("serving.process_pool.pool.Slot", LentSlot)
        yield
    for _, process in LentSlot.kept:
        process.close()
    LentSlot.starter.shutdown()


@pytest.fixture(scope="session", autouse=True)
def shared_parts() -> Iterator[None]:
    """What takes most of the time of making a gateway, and is the same for all of these tests.

    The schema of each form, and the files of the page.
    """
    with pytest.MonkeyPatch.context() as patch:
        for module, name in (
            (openapi, "_form"),
            (exchange, "form_of"),
            (files, "form_of"),
            (app, "read_assets"),
            (routes, "read_docs_assets"),
        ):
            patch.setattr(module, name, cache(getattr(module, name)))
        yield


MakeGateway = Callable[..., Gateway]


@pytest.fixture
async def make_gateway(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[MakeGateway]:
    for name in GatewaySettings.model_fields:
        monkeypatch.delenv(f"TRIPTYCH_{name.upper()}", raising=False)
    gateways: list[Gateway] = []

    def make(models: list[LoadedModel] | None = None, **settings: object) -> Gateway:
        gateways.append(Gateway(all_models() if models is None else models, **settings))
        return gateways[-1]

    yield make
    for gateway in gateways:
        await gateway.close()


@pytest.fixture
def gateway(make_gateway: MakeGateway) -> Gateway:
    return make_gateway()


def error_of(response: httpx.Response) -> dict[str, str]:
    """The error of a body that holds nothing else."""
    body = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) <= {"type", "message", "field"}
    assert "Traceback" not in response.text
    return body["error"]
