"""The page and `/docs` without a browser."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from inference.tasks import TASKS
from serving.gateway.http.routes import (
    CONTENT_SECURITY_POLICY,
    DOCS_SECURITY_POLICY,
    FOLDER,
    INDEX,
    read_docs_assets,
)
from tests.serving.gateway.conftest import Gateway, MakeGateway
from tests.serving.gateway.http.page_files import (
    ASSETS,
    COMMENT,
    DOCUMENT,
    SCRIPTS,
    TEXTS,
    imported,
    linked,
    panel_tasks,
    reachable,
)

WITHOUT_PANEL: set[str] = set()
"""Tasks that have no panel, on purpose."""
PICTURES = Path(__file__).parents[4] / "examples" / "demo" / "pictures"
MOST_LINES = 400


PATHS = {"/": INDEX} | {f"/ui/{name}": name for name in ASSETS if name != INDEX}


@pytest.fixture
def gateway(make_gateway: MakeGateway) -> Gateway:
    """One without models: the page does not depend on them."""
    return make_gateway([])


async def test_every_file_is_served_with_its_policy_and_type(gateway: Gateway) -> None:
    for path, name in PATHS.items():
        response = await gateway.http.get(path)
        assert (response.status_code, response.content) == (200, ASSETS[name].content), path
        assert response.headers["content-type"] == ASSETS[name].media_type
        assert response.headers["content-security-policy"] == CONTENT_SECURITY_POLICY
        assert response.headers["x-content-type-options"] == "nosniff"
        assert response.headers["cache-control"] == "no-cache"


async def test_a_known_file_is_not_sent_again(gateway: Gateway) -> None:
    for path in PATHS:
        etag = (await gateway.http.get(path)).headers["etag"]
        for given in (etag, f"W/{etag}", f'"other", {etag}'):
            response = await gateway.http.get(path, headers={"if-none-match": given})
            assert (response.status_code, response.content) == (304, b""), path
            assert response.headers["etag"] == etag
        other = await gateway.http.get(path, headers={"if-none-match": '"other"'})
        assert other.status_code == 200


async def test_the_policy_allows_this_server_alone() -> None:
    policy = dict(part.split(" ", 1) for part in CONTENT_SECURITY_POLICY.split("; "))
    assert policy["default-src"] == "'none'"
    assert {policy[f"{kind}-src"] for kind in ("script", "style", "connect")} == {"'self'"}
    assert "unsafe" not in CONTENT_SECURITY_POLICY
    assert policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"


async def test_head_is_answered(gateway: Gateway) -> None:
    assert (await gateway.http.head("/")).status_code == 200


@pytest.mark.parametrize(
    "name", ["missing.js", "../routes.py", "%2e%2e/routes.py", "panels", "", "index.js"]
)
async def test_other_files_are_not_served(gateway: Gateway, name: str) -> None:
    response = await gateway.http.get(f"/ui/{name}")
    assert response.status_code == 404
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


async def test_the_page_is_no_part_of_the_api(gateway: Gateway) -> None:
    paths = (await gateway.http.get("/openapi.json")).json()["paths"]
    assert [path for path in paths if path == "/" or path.startswith("/ui")] == []


async def test_files_share_one_metric_and_are_not_logged_one_by_one(
    gateway: Gateway, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", logger="serving"):
        await gateway.http.get("/ui/app.js")
        await gateway.http.get("/ui/dom.js")
    assert [record for record in caplog.records if record.name.startswith("serving")] == []
    text = (await gateway.http.get("/metrics")).text
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
    gateway: Gateway,
) -> None:
    assets = read_docs_assets()
    assert {"", "start.js", "swagger-ui-bundle.js", "swagger-ui.css"} == set(assets)
    for name, asset in assets.items():
        path = f"/docs/{name}" if name else "/docs"
        response = await gateway.http.get(path)
        assert (response.status_code, response.content) == (200, asset.content), path
        assert response.headers["content-security-policy"] == DOCS_SECURITY_POLICY
        assert response.headers["content-type"] == asset.media_type
        assert (await gateway.http.head(path)).status_code == 200
    assert "http" not in DOCS_SECURITY_POLICY
    assert "script-src 'self';" in DOCS_SECURITY_POLICY


async def test_the_page_refers_to_files_that_are_served(gateway: Gateway) -> None:
    page = (await gateway.http.get("/docs")).text
    addresses = re.findall(r'(?:src|href)="([^"]+)"', page)
    assert len(addresses) == 4
    for address in [*addresses, "openapi.json"]:
        assert not address.startswith(("/", "http")), "a proxy may add a prefix"
        assert (await gateway.http.get(f"/{address}")).status_code == 200


async def test_other_files_of_the_docs_are_not_served(gateway: Gateway) -> None:
    for name in ("missing.js", "redoc.standalone.js", "..%2f__init__.py"):
        assert (await gateway.http.get(f"/docs/{name}")).status_code == 404
