"""`/docs` without a browser: what is served, and that nothing of it is on another host."""

import re

import pytest

from serving.gateway.http.api_docs import CONTENT_SECURITY_POLICY, read_docs_assets
from tests.serving.gateway.conftest import Gateway, MakeGateway


@pytest.fixture
def gateway(make_gateway: MakeGateway) -> Gateway:
    """One without models: the document does not depend on them."""
    return make_gateway([])


async def test_page_and_files_are_served_with_a_policy_for_this_host(gateway: Gateway) -> None:
    assets = read_docs_assets()
    assert {"", "start.js", "swagger-ui-bundle.js", "swagger-ui.css"} == set(assets)
    for name, asset in assets.items():
        path = f"/docs/{name}" if name else "/docs"
        response = await gateway.http.get(path)
        assert (response.status_code, response.content) == (200, asset.content), path
        assert response.headers["content-security-policy"] == CONTENT_SECURITY_POLICY
        assert response.headers["content-type"] == asset.media_type
        assert (await gateway.http.head(path)).status_code == 200
    assert "http" not in CONTENT_SECURITY_POLICY
    assert "script-src 'self';" in CONTENT_SECURITY_POLICY


async def test_the_page_refers_to_files_that_are_served(gateway: Gateway) -> None:
    page = (await gateway.http.get("/docs")).text
    addresses = re.findall(r'(?:src|href)="([^"]+)"', page)
    assert len(addresses) == 4
    for address in [*addresses, "openapi.json"]:
        assert not address.startswith(("/", "http")), "a proxy may add a prefix"
        assert (await gateway.http.get(f"/{address}")).status_code == 200


async def test_other_files_are_not_served(gateway: Gateway) -> None:
    for name in ("missing.js", "redoc.standalone.js", "..%2f__init__.py"):
        assert (await gateway.http.get(f"/docs/{name}")).status_code == 404
