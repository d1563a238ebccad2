"""The OpenAPI document: complete, resolvable, and true of the gateway (schemathesis)."""

import asyncio
import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvicorn
from pydantic import TypeAdapter

import triptych
from inference.tasks import TASKS
from serving.gateway.http import openapi
from serving.ports import listening
from serving.settings.gateway_settings import GatewaySettings
from tests.serving.gateway.conftest import Gateway, MakeGateway, all_models, text_models
from triptych.fields import fields_of
from triptych.messages import ErrorResponse

ROOT = Path(__file__).parents[4]
CONFIGURATION = str(ROOT / "schemathesis.toml")
ONE_OR_MANY = [
    {"type": "string"},
    {"type": "array", "items": {"type": "string"}, "minItems": 1},
]
SINGLE = ("/embed", "/generate", "/generate_stream", "/predict", "/rerank", "/similarity")
OPERATIONS = len(TASKS) + 10 + 4 + 10 + 6 + 6 + 4
"""`/v1/models` and one of it, liveness and readiness twice each, `/metrics`, OpenAI's three;
glossaries; Hugging Face's, and those of its servers; LibreTranslate's; the open inference
protocol's."""
KEYED = ("/v2/models", "/v1/", "/hf/", "/translate", "/detect", "/metrics", *SINGLE)
"""Beginnings of paths behind the key."""
KEY = "sesame"


async def document(gateway: Gateway) -> dict:
    headers = {"authorization": f"Bearer {KEY}"}
    response = await gateway.http.get("/openapi.json", headers=headers)
    assert response.status_code == 200
    return response.json()


def references(node: object) -> Iterator[str]:
    if isinstance(node, dict):
        if isinstance(node.get("$ref"), str):
            yield node["$ref"]
        for value in node.values():
            yield from references(value)
    elif isinstance(node, list):
        for value in node:
            yield from references(value)


async def test_version_is_that_of_the_package(gateway: Gateway) -> None:
    assert (await document(gateway))["info"]["version"] == triptych.__version__
    assert 'triptych_request_count_total{route="/openapi.json"} 1.0' in gateway.exposed


async def test_every_reference_resolves(gateway: Gateway) -> None:
    described = await document(gateway)
    found = set(references(described))
    assert "#/components/schemas/Example" in found
    for reference in found:
        node: dict = described
        for step in reference.removeprefix("#/").split("/"):
            node = node[step]


async def test_document_is_made_once_while_other_requests_are_served(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, may_end = [], threading.Event()

    def make(**given: object) -> dict:
        made.append(given)
        assert may_end.wait(30)
        return {"paths": {}, "components": {"schemas": {}}}

    monkeypatch.setattr(openapi, "get_openapi", make)
    documents = [asyncio.create_task(document(gateway)) for _ in range(2)]
    while not made:
        await asyncio.sleep(0.01)
    assert (await gateway.http.get("/health")).status_code == 200
    may_end.set()
    first, second = await asyncio.gather(*documents)
    assert first == second == await document(gateway)
    assert len(made) == 1


async def test_one_text_or_image_stands_for_a_list_of_one(gateway: Gateway) -> None:
    schemas = (await document(gateway))["components"]["schemas"]
    for task in TASKS.values():
        fields = fields_of(task.declaration.request)
        for field in task.declaration.item_fields:
            kinds = schemas[task.declaration.request.__name__]["properties"][field]
            kinds = kinds.get("anyOf", [])
            assert fields[field].is_message or kinds[:2] == ONE_OR_MANY
    one, many, null = schemas["GenerateRequest"]["properties"]["stop"]["anyOf"]
    assert (one["type"], one["minLength"], null) == ("string", 1, {"type": "null"})
    assert (many["minItems"], many["maxItems"], many["items"]) == (1, 16, one)


async def test_every_task_declares_its_statuses_and_content_types(gateway: Gateway) -> None:
    paths = (await document(gateway))["paths"]
    for task in TASKS.values():
        operation = paths[task.declaration.path]["post"]
        images = task.declaration.takes_images
        statuses = set("200 400 403 404 413 415 421 422 429 500 503 504".split())
        assert set(operation["responses"]) == statuses
        assert operation["summary"] == task.declaration.summary
        content = set(operation["responses"]["200"]["content"])
        events = {"text/event-stream"} if task.declaration.streams else set()
        assert content == {"application/json"} | events
        forms = {"multipart/form-data"} if images else set()
        assert set(operation["requestBody"]["content"]) == {"application/json"} | forms
        assert "Retry-After" in operation["responses"]["429"]["headers"]


async def test_refusals_of_hosts_and_sites_are_declared_where_they_happen(
    gateway: Gateway, make_gateway: MakeGateway
) -> None:
    open_ = make_gateway(api_key=KEY, host="0.0.0.0")
    for each, is_guarded in ((gateway, True), (open_, False)):
        for path, methods in (await document(each))["paths"].items():
            for verb, operation in methods.items():
                declared = set(operation["responses"])
                assert ("421" in declared) == is_guarded, path
                if is_guarded:
                    assert ("403" in declared) == (verb != "get"), path
    hosted = await gateway.http.post("/hf/caption/a", headers={"host": "evil.example"})
    paths = (await document(gateway))["paths"]
    schema = paths["/hf/caption/{model}"]["post"]["responses"]["421"]["content"]
    named = schema["application/json"]["schema"]["$ref"].rpartition("/")[2]
    assert (hosted.status_code, named) == (421, "ErrorResponse")
    ErrorResponse.model_validate(hosted.json())


async def test_metrics_declare_their_content_type(gateway: Gateway) -> None:
    described = (await document(gateway))["paths"]["/metrics"]["get"]["responses"]["200"]
    served = (await gateway.http.get("/metrics")).headers["content-type"]
    assert list(described["content"]) == [served]


async def test_forms_have_no_null(gateway: Gateway) -> None:
    paths = (await document(gateway))["paths"]
    form = paths["/v1/caption"]["post"]["requestBody"]["content"]["multipart/form-data"]["schema"]
    assert form["properties"]["images"]["items"] == {"type": "string", "format": "binary"}
    assert "null" not in str(form)
    assert form["properties"]["num_beams"]["type"] == "integer"


async def test_routes_behind_a_key_declare_it(make_gateway: MakeGateway) -> None:
    described = await document(make_gateway(api_key=KEY))
    assert described["components"]["securitySchemes"]["key"]["scheme"] == "bearer"
    for path, methods in described["paths"].items():
        is_keyed = path.startswith(KEYED) or path == "/v2"
        for operation in methods.values():
            assert ("security" in operation) == is_keyed, path
            assert ("401" in operation["responses"]) == is_keyed, path


async def test_request_schemas_are_those_that_validate(gateway: Gateway) -> None:
    schemas = (await document(gateway))["components"]["schemas"]
    for task in TASKS.values():
        message = task.declaration.request
        own = TypeAdapter(message).json_schema(ref_template="#/components/schemas/{model}")
        own.pop("$defs", None)
        assert schemas[message.__name__] == own


@contextlib.contextmanager
def served(**settings: object) -> Iterator[str]:
    """Address of a gateway on a free port of loopback, in a thread of its own."""
    own = GatewaySettings(**settings)
    with contextlib.closing(listening("127.0.0.1", 0, "HTTP")) as socket:
        ready = threading.Event()
        server: list[uvicorn.Server] = []

        async def run() -> None:
            gateway = Gateway([*all_models(), *text_models()], **own.model_dump(exclude_unset=True))
            config = uvicorn.Config(gateway.app, log_config=None, lifespan="off", ws="none")
            server.append(uvicorn.Server(config))
            ready.set()
            await server[0].serve([socket])
            await gateway.close()

        thread = threading.Thread(target=asyncio.run, args=(run(),))
        thread.start()
        try:
            assert ready.wait(30)
            yield f"http://127.0.0.1:{socket.getsockname()[1]}"
        finally:
            server[0].should_exit = True
            thread.join(30)


@pytest.mark.full
@pytest.mark.integration
@pytest.mark.parametrize("key", [None, KEY])
def test_schemathesis_finds_nothing(key: str | None, tmp_path: Path) -> None:
    program = [sys.executable, "-m", "schemathesis.cli", "--config-file", CONFIGURATION]
    flags = ["--checks", "all", "--max-examples", "50", "--seed", "1", "--no-color"]
    flags += ["--header", f"Authorization: Bearer {key}"] if key else []
    with served(**({"api_key": key} if key else {})) as address:
        run = subprocess.run(
            [*program, "run", f"{address}/openapi.json", *flags],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            check=False,
        )
    assert run.returncode == 0, run.stdout
    assert run.stdout.count(f"{OPERATIONS} passed") == 2  # coverage and fuzzing
