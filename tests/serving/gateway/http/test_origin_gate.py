"""A page of another site uses the user's browser against a gateway on loopback or without keys."""

import httpx
import pytest

from serving.gateway.http.origin_gate import Hosts
from tests.serving.gateway.conftest import Gateway, MakeGateway, error_of

BODY = {"texts": "hello"}
KEY = {"authorization": "Bearer secret"}


async def sent(gateway: Gateway, **headers: str) -> httpx.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return await gateway.http.post("/v1/translate", json=BODY, headers=named)


@pytest.mark.parametrize(
    "host",
    [
        *("localhost", "localhost:8080", "LOCALHOST", "app.localhost:1", "127.0.0.1:8080"),
        *("[::1]:8080", "[fd00::1]", "10.1.2.3", "gateway:8080"),
    ],
)
async def test_addresses_and_local_names_are_served(gateway: Gateway, host: str) -> None:
    assert (await sent(gateway, host=host)).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        *("evil.example", "evil.example:8080", "localhost.evil.example", "127.0.0.1.evil.example"),
        *(
            "127.0.0.1@evil.example",
            "evil.example.",
            "1.2.3",
            "evil%2eexample",
            "[::1].evil.example",
        ),
    ],
)
async def test_other_names_are_refused_on_every_path(gateway: Gateway, host: str) -> None:
    response = await sent(gateway, host=host)
    assert (response.status_code, error_of(response)["type"]) == (421, "unknown_host")
    assert "--allowed-hosts" in error_of(response)["message"]
    for path in ("/", "/v1/models", "/metrics", "/no/such"):
        assert (await gateway.http.get(path, headers={"host": host})).status_code == 421
    assert not gateway.inference.calls


async def test_configured_names_are_served(make_gateway: MakeGateway) -> None:
    gateway = make_gateway(
        allowed_hosts="Models.example.org,*.svc.cluster.local",
        public_url="https://public.example.org/models",
    )
    for host in ("models.example.org:8080", "gateway.default.svc.cluster.local"):
        assert (await sent(gateway, host=host)).status_code == 200
    assert (await sent(gateway, host="public.example.org")).status_code == 200
    for host in ("example.org", "svc.cluster.local", "other.models.example.org"):
        assert (await sent(gateway, host=host)).status_code == 421


@pytest.mark.parametrize(
    ("settings", "status"),
    [
        ({"host": "0.0.0.0"}, 421),
        ({"host": "127.0.0.1", "api_key": "secret"}, 421),
        ({"host": "0.0.0.0", "api_key": "secret"}, 200),
    ],
    ids=["keyless", "loopback", "key"],
)
async def test_checked_on_loopback_or_without_keys(
    make_gateway: MakeGateway, settings: dict[str, str], status: int
) -> None:
    gateway = make_gateway(**settings)
    assert (await sent(gateway, host="models.example.org", **KEY)).status_code == status


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": "http://localhost:3000"},
        {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site", "origin": "http://localhost:3000"},
    ],
)
async def test_posts_of_other_sites_are_refused(gateway: Gateway, headers: dict[str, str]) -> None:
    response = await sent(gateway, host="localhost:8080", **headers)
    assert (response.status_code, error_of(response)["type"]) == (403, "cross_site")
    assert "--cors-allow-origin" in error_of(response)["message"]
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    files = [("images", ("x.png", b"x"))]
    form = await gateway.http.post("/v1/caption", files=files, headers=named)
    assert form.status_code == 403
    translation = await gateway.http.post("/translate", data={"q": "a"}, headers=named)
    assert translation.status_code == 403
    assert not gateway.inference.calls
    assert (await gateway.http.get("/v1/models", headers=named)).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://localhost:8080", "sec_fetch_site": "same-origin"},
        {"origin": "http://localhost:8080"},
        {"origin": "https://public.example.org"},
        {"origin": "https://elsewhere.example", "sec_fetch_site": "same-origin"},  # a proxy's Host
        {"sec_fetch_site": "none"},
        {"origin": "https://app.example"},
        {},
    ],
)
async def test_own_page_allowed_sites_and_programs_are_served(
    make_gateway: MakeGateway, headers: dict[str, str]
) -> None:
    gateway = make_gateway(
        cors_allow_origin="https://app.example", public_url="https://public.example.org:443/x"
    )
    assert (await sent(gateway, host="localhost:8080", **headers)).status_code == 200


async def test_any_site_may_send_where_cors_allows_all(make_gateway: MakeGateway) -> None:
    gateway = make_gateway(cors_allow_origin="*")
    assert (await sent(gateway, origin="https://app.example")).status_code == 200


def test_request_without_a_host_is_no_browsers() -> None:
    assert Hosts([]).has("")
    assert not Hosts([]).has("[")
