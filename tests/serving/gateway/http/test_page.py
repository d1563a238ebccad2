"""The page, `/docs`, and the OpenAPI document: complete, resolvable, true (schemathesis)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path, PurePosixPath

import pytest
import uvicorn
from pydantic import TypeAdapter

import triptych
from inference.tasks import TASKS
from serving.gateway.http import openapi
from serving.gateway.http.routes import (
    CONTENT_SECURITY_POLICY,
    DOCS_SECURITY_POLICY,
    FOLDER,
    INDEX,
    read_assets,
    read_docs_assets,
)
from serving.ports import listening
from serving.settings.gateway_settings import GatewaySettings
from tests.serving.gateway.conftest import Gateway, MakeGateway, all_models, text_models
from triptych.fields import fields_of
from triptych.messages import ErrorResponse

ASSETS = read_assets()
TEXTS = {
    name: asset.content.decode()
    for name, asset in ASSETS.items()
    if not asset.media_type.startswith(("image/png", "image/jpeg"))
}
SCRIPTS = {name: text for name, text in TEXTS.items() if name.endswith(".js")}
COMMENT = re.compile(r"/\*.*?\*/|(?<![:\"'`])//[^\n]*", re.DOTALL)
IMPORT = re.compile(r"""(?:from|import)\s*\(?\s*["'](\.[^"']+)["']""")
PANEL = re.compile(r'^  task: "([^"]+)"', re.MULTILINE)


class Elements(HTMLParser):
    """The elements of a document: tag, attributes, and the text of scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.inline = ""
        self._open = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._open = tag

    def handle_endtag(self, tag: str) -> None:
        self._open = ""

    def handle_data(self, data: str) -> None:
        if self._open in ("script", "style"):
            self.inline += data


DOCUMENT = Elements(TEXTS[INDEX])


def linked() -> set[str]:
    """Paths that the document names in `src` and `href`."""
    found = (element.get(name) for _, element in DOCUMENT.elements for name in ("src", "href"))
    return {path for path in found if path and not path.startswith("#")}


def imported(name: str) -> set[str]:
    """Modules that a module imports, by their path in the folder."""
    folder = PurePosixPath(name).parent
    paths = (folder / path for path in IMPORT.findall(SCRIPTS[name]))
    return {(FOLDER / path).resolve().relative_to(FOLDER).as_posix() for path in paths}


def reachable(name: str) -> set[str]:
    """A module and all that it imports, directly or not."""
    found: set[str] = set()
    waiting = [name]
    while waiting:
        module = waiting.pop()
        if module not in found:
            found.add(module)
            waiting.extend(imported(module))
    return found


def panel_tasks() -> list[str]:
    """Tasks of the panels that the registry imports."""
    modules = sorted(imported("panels/index.js"))
    return [task for module in modules for task in PANEL.findall(SCRIPTS[module])]


WITHOUT_PANEL: set[str] = set()
"""Tasks that have no panel, on purpose."""
PICTURES = Path(__file__).parents[4] / "examples" / "demo" / "pictures"
MOST_LINES = 400


PATHS = {"/": INDEX} | {f"/ui/{name}": name for name in ASSETS if name != INDEX}


@pytest.fixture
def without_models(make_gateway: MakeGateway) -> Gateway:
    """The page does not depend on models."""
    return make_gateway([])


async def test_every_file_is_served_with_its_policy_and_type(without_models: Gateway) -> None:
    for path, name in PATHS.items():
        response = await without_models.http.get(path)
        assert (response.status_code, response.content) == (200, ASSETS[name].content), path
        assert response.headers["content-type"] == ASSETS[name].media_type
        assert response.headers["content-security-policy"] == CONTENT_SECURITY_POLICY
        assert response.headers["x-content-type-options"] == "nosniff"
        assert response.headers["cache-control"] == "no-cache"


async def test_a_known_file_is_not_sent_again(without_models: Gateway) -> None:
    for path in PATHS:
        etag = (await without_models.http.get(path)).headers["etag"]
        for given in (etag, f"W/{etag}", f'"other", {etag}'):
            response = await without_models.http.get(path, headers={"if-none-match": given})
            assert (response.status_code, response.content) == (304, b""), path
            assert response.headers["etag"] == etag
        await without_models.get(path, headers={"if-none-match": '"other"'})


async def test_the_policy_allows_this_server_alone() -> None:
    policy = dict(part.split(" ", 1) for part in CONTENT_SECURITY_POLICY.split("; "))
    assert policy["default-src"] == "'none'"
    assert {policy[f"{kind}-src"] for kind in ("script", "style", "connect")} == {"'self'"}
    assert "unsafe" not in CONTENT_SECURITY_POLICY
    assert policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"


async def test_head_is_answered(without_models: Gateway) -> None:
    assert (await without_models.http.head("/")).status_code == 200


@pytest.mark.parametrize(
    "name", ["missing.js", "../routes.py", "%2e%2e/routes.py", "panels", "", "index.js"]
)
async def test_other_files_are_not_served(without_models: Gateway, name: str) -> None:
    response = await without_models.get(f"/ui/{name}", status=404)
    assert "error" in response.json()


async def test_the_page_needs_no_key_and_the_data_does(make_gateway: MakeGateway) -> None:
    gateway = make_gateway([], api_key="sesame")
    for name in ("/", "/ui/app.js", "/ui/pictures/scene-1.png"):
        assert (await gateway.http.get(name)).status_code == 200
    assert (await gateway.http.get("/v1/models")).status_code == 401


async def test_without_the_page_the_root_leads_to_the_documentation(
    make_gateway: MakeGateway,
) -> None:
    gateway = make_gateway([], page=False)
    response = await gateway.http.get("/")
    assert (response.status_code, response.headers["location"]) == (307, "docs")
    assert (await gateway.http.get("/ui/app.js")).status_code == 404


async def test_the_page_is_no_part_of_the_api(without_models: Gateway) -> None:
    paths = (await without_models.http.get("/openapi.json")).json()["paths"]
    assert [path for path in paths if path == "/" or path.startswith("/ui")] == []


async def test_files_share_one_metric_and_are_not_logged_one_by_one(
    without_models: Gateway, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", logger="serving"):
        await without_models.http.get("/ui/app.js")
        await without_models.http.get("/ui/dom.js")
    assert [record for record in caplog.records if record.name.startswith("serving")] == []
    text = (await without_models.http.get("/metrics")).text
    assert 'triptych_request_count_total{route="/ui/{name:path}"} 2.0' in text


def test_nothing_is_inline() -> None:
    assert DOCUMENT.inline.strip() == ""
    for tag, attributes in DOCUMENT.elements:
        assert tag != "style"
        assert not [name for name in attributes if name == "style" or name.startswith("on")]


def test_urls_are_relative_so_that_a_prefix_works() -> None:
    assert [path for path in linked() if re.match(r"/|[a-z]+:", path)] == []
    absolute = re.compile(r"""["'`(]/(?:v1|ui|docs)\b""")
    assert {
        name: absolute.findall(text) for name, text in TEXTS.items() if absolute.search(text)
    } == {}


def test_no_file_names_another_host() -> None:
    namespace = "http://www.w3.org/2000/svg"  # a name, not an address
    host = re.compile(r"(?:https?:)?//[\w-]+\.[\w.-]+")
    for name, text in TEXTS.items():
        content = COMMENT.sub("", text.replace(namespace, ""))
        assert host.findall(content) == [], name


def test_text_never_becomes_html_or_code() -> None:
    sink = re.compile(
        r"\b(innerHTML|outerHTML|insertAdjacentHTML|document\.write|createContextualFragment"
        r"|DOMParser|eval|Function)\b|setTimeout\(\s*[\"'`]"
    )
    assert {name: sink.findall(text) for name, text in SCRIPTS.items() if sink.search(text)} == {}


def test_every_reference_exists_and_every_file_is_used() -> None:
    named = {path.removeprefix("ui/") for path in linked() if path.startswith("ui/")}
    named -= set(SCRIPTS) - {"app.js", "stored_theme.js"}
    for module in SCRIPTS:
        assert imported(module) <= set(SCRIPTS), module
    used = named | reachable("app.js") | {INDEX}
    pictures = re.findall(r'"(scene-[^"]+)"', SCRIPTS["example_pictures.js"])
    assert used | {f"pictures/{name}" for name in pictures} == set(ASSETS)
    every = {path.relative_to(FOLDER).as_posix() for path in FOLDER.rglob("*") if path.is_file()}
    assert every == set(ASSETS)


def test_every_module_is_loaded_at_once() -> None:
    preloaded = [
        attributes["href"]
        for tag, attributes in DOCUMENT.elements
        if tag == "link" and attributes["rel"] == "modulepreload"
    ]
    assert sorted(map(str, preloaded)) == sorted(
        f"ui/{name}" for name in reachable("app.js") - {"app.js"}
    )


def test_every_task_has_a_panel_or_is_listed_without_one() -> None:
    tasks = panel_tasks()
    assert len(tasks) == len(set(tasks))
    assert set(tasks) | WITHOUT_PANEL == set(TASKS)
    assert not set(tasks) & WITHOUT_PANEL


def test_the_pictures_are_those_of_the_examples() -> None:
    copies = {path.name: path.read_bytes() for path in (FOLDER / "pictures").iterdir()}
    assert copies == {path.name: path.read_bytes() for path in PICTURES.glob("scene-*")}


def test_modules_are_small() -> None:
    longest = {name: text.count("\n") for name, text in TEXTS.items()}
    assert {name: lines for name, lines in longest.items() if lines > MOST_LINES} == {}


async def test_page_and_files_are_served_with_a_policy_for_this_host(
    without_models: Gateway,
) -> None:
    assets = read_docs_assets()
    assert {"", "start.js", "swagger-ui-bundle.js", "swagger-ui.css"} == set(assets)
    for name, asset in assets.items():
        path = f"/docs/{name}" if name else "/docs"
        response = await without_models.http.get(path)
        assert (response.status_code, response.content) == (200, asset.content), path
        assert response.headers["content-security-policy"] == DOCS_SECURITY_POLICY
        assert response.headers["content-type"] == asset.media_type
        assert (await without_models.http.head(path)).status_code == 200
    assert "http" not in DOCS_SECURITY_POLICY
    assert "script-src 'self';" in DOCS_SECURITY_POLICY


async def test_the_page_refers_to_files_that_are_served(without_models: Gateway) -> None:
    page = (await without_models.http.get("/docs")).text
    addresses = re.findall(r'(?:src|href)="([^"]+)"', page)
    assert len(addresses) == 4
    for address in [*addresses, "openapi.json"]:
        assert not address.startswith(("/", "http")), "a proxy may add a prefix"
        assert (await without_models.http.get(f"/{address}")).status_code == 200


async def test_other_files_of_the_docs_are_not_served(without_models: Gateway) -> None:
    for name in ("missing.js", "redoc.standalone.js", "..%2f__init__.py"):
        assert (await without_models.http.get(f"/docs/{name}")).status_code == 404


ROOT = Path(__file__).parents[4]
CONFIGURATION = str(ROOT / "schemathesis.toml")
ONE_OR_MANY = [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "minItems": 1}]
SINGLE = ("/embed", "/generate", "/generate_stream", "/predict", "/rerank", "/similarity")
OPERATIONS = len(TASKS) + 10 + 4 + 11 + 6 + 6 + 4
"""`/v1/models` and one of it, liveness and readiness twice each, `/metrics`, OpenAI's three;
glossaries; Hugging Face's, and those of its servers; LibreTranslate's; the open inference
protocol's."""
KEYED = ("/v2/models", "/v1/", "/hf/", "/translate", "/detect", "/metrics", *SINGLE)
"""Beginnings of paths behind the key."""
KEY = "sesame"


async def document(gateway: Gateway) -> dict:
    headers = {"authorization": f"Bearer {KEY}"}
    response = await gateway.get("/openapi.json", headers=headers)
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
