"""The proxy's configuration, run by a real nginx in front of a real gateway and Triton."""

from __future__ import annotations

import re
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import grpc
import httpx
import pytest
import yaml

from examples.demo.server import free_port
from serving.settings.gateway_settings import GatewaySettings
from tests.collector import handled_by, serving
from tests.e2e.conftest import Stack, repository, running, shared
from tests.e2e.text_bundles import copy_models
from triptych import triptych_pb2 as pb
from triptych.triptych_pb2_grpc import TriptychStub

__all__ = ["repository", "shared"]

DOCKER = Path(__file__).parents[2] / "docker"
TEMPLATE = (DOCKER / "tls" / "gateway.conf.template").read_text()
COMPOSE = yaml.safe_load((DOCKER / "compose.tls.yaml").read_text())["services"]
VARIABLE = re.compile(r"\$\{([A-Z_]+)\}")
KEY = "sesame"
HEADERS = {"authorization": f"Bearer {KEY}"}
PREFIX = "/triptych"
PROGRAMS = "/usr/sbin:/usr/bin:/usr/local/bin"
MODELS = ("example-es-en", "example-gpt")


def test_compose_gives_every_variable_of_the_template() -> None:
    given = COMPOSE["proxy"]["environment"]
    assert set(VARIABLE.findall(TEMPLATE)) <= set(given)
    assert given["GATEWAY_HTTP"] == "gateway:8080"
    assert "${API_KEY:?" in COMPOSE["gateway"]["environment"]["TRIPTYCH_API_KEY"]
    settings = {f"TRIPTYCH_{name.upper()}" for name in GatewaySettings.model_fields}
    assert set(COMPOSE["gateway"]["environment"]) <= settings


def test_redirect_goes_to_the_published_port() -> None:
    given = COMPOSE["proxy"]
    assert given["ports"][0] == "${HTTPS_PORT:-443}:8443"
    assert given["environment"]["REDIRECT_PORT"] == "${HTTPS_PORT:+:$HTTPS_PORT}"


def test_proxy_has_the_limits_of_the_gateway() -> None:
    given = COMPOSE["proxy"]["environment"]
    settings = GatewaySettings.model_fields
    assert given["MAX_BODY"] == f"${{MAX_BODY:-{settings['payload_limit'].default}}}"
    (seconds,) = re.findall(r":-(\d+)s\}", given["TIMEOUT"])
    assert int(seconds) > settings["request_timeout"].default


@dataclass(frozen=True)
class Proxy:
    port: int
    redirect_port: int
    certificate: Path

    @property
    def url(self) -> str:
        return f"https://localhost:{self.port}"

    def client(self) -> httpx.Client:
        trust = ssl.create_default_context(cafile=self.certificate)
        return httpx.Client(base_url=self.url, verify=trust, headers=HEADERS, timeout=60)


needs_nginx = [
    pytest.mark.integration,
    pytest.mark.full,
    pytest.mark.skipif(
        shutil.which("nginx", path=PROGRAMS) is None or shutil.which("openssl") is None,
        reason="nginx or openssl is not installed",
    ),
]


@pytest.fixture(scope="module")
def stack(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("behind-tls")
    with running(
        copy_models(repository, folder, MODELS),
        folder,
        TRIPTYCH_API_KEY=KEY,
        TRIPTYCH_PUBLIC_URL="https://models.example.org/triptych/",
    ) as stack:
        yield stack


@pytest.fixture(scope="module", params=["", PREFIX])
def proxy(
    stack: Stack, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Proxy]:
    upstream = stack.url.removeprefix("http://")
    folder = tmp_path_factory.mktemp("nginx")
    with nginx(folder, upstream, stack.grpc_address, request.param) as started:
        yield started


@contextmanager
def nginx(
    folder: Path, http: str, grpc_address: str, prefix: str = "", resolver: str = "127.0.0.1:9"
) -> Iterator[Proxy]:
    """The configuration as it is in the container, but for addresses and folders."""
    certificate, key = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
            *("-nodes", "-days", "1", "-subj", "/CN=localhost"),
            *("-addext", "subjectAltName=DNS:localhost"),
            *("-keyout", str(key), "-out", str(certificate)),
        ],
        check=True,
        capture_output=True,
    )
    made = Proxy(free_port(), free_port(), certificate)
    values = {
        "GATEWAY_HTTP": http,
        "GATEWAY_GRPC": grpc_address,
        "LISTEN_HTTP": f"127.0.0.1:{made.redirect_port}",
        "LISTEN_HTTPS": f"127.0.0.1:{made.port}",
        "TLS_CERTIFICATE": str(certificate),
        "TLS_KEY": str(key),
        "MAX_BODY": "20000000",
        "TIMEOUT": "300s",
        "PREFIX": prefix,
        "REDIRECT_PORT": f":{made.port}",
        "RESOLVER": resolver,
    }
    (folder / "conf.d").mkdir()
    configured = VARIABLE.sub(lambda match: values[match[1]], TEMPLATE)
    (folder / "conf.d" / "gateway.conf").write_text(configured)
    main = (DOCKER / "tls" / "nginx.conf").read_text().replace("/tmp/", f"{folder}/")
    (folder / "nginx.conf").write_text(main)
    program = shutil.which("nginx", path=PROGRAMS)
    command = [str(program), "-c", str(folder / "nginx.conf"), "-g", "daemon off;"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        wait_for(made.port, process, folder / "log")
        yield made
    finally:
        process.terminate()
        process.wait(20)


def wait_for(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    until_s = time.monotonic() + 20
    while time.monotonic() < until_s and process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    pytest.fail(log.read_text())


@pytest.fixture
def prefix(request: pytest.FixtureRequest) -> str:
    return str(request.node.callspec.params["proxy"])


@contextmanager
def upstream(turn: threading.Semaphore) -> Iterator[str]:
    """The URL of one stream: each chunk waits for the client to have read the one before."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.send_header("transfer-encoding", "chunked")
            self.end_headers()
            for number in range(3):
                event = b"data: %d\n\n" % number
                self.wfile.write(b"%x\r\n%b\r\n" % (len(event), event))
                turn.acquire(timeout=30)
            self.wfile.write(b"0\r\n\r\n")

    with handled_by(Handler) as url:
        yield url


class TestBehindNginx:
    pytestmark = needs_nginx

    def test_requests_and_the_page(self, proxy: Proxy, prefix: str) -> None:
        with proxy.client() as client:
            body = {"texts": ["este restaurante"]}
            answer = client.post(f"{prefix}/v1/translate", json=body)
            assert answer.json()["data"][0]["text"]
            page = client.get(f"{prefix}/")
            assert "text/html" in page.headers["content-type"]
            for name in re.findall(r'(?:src|href)="(ui/[^"]+)"', page.text):
                assert client.get(f"{prefix}/{name}").status_code == 200, name
            assert client.get(f"{prefix}/languages").json()

    def test_gateways_own_errors_pass(self, proxy: Proxy, prefix: str) -> None:
        with proxy.client() as client:
            path = f"{prefix}/v1/translate"
            wrong = {"authorization": "Bearer x"}
            refused = client.post(path, json={"texts": ["a"]}, headers=wrong)
            assert (refused.status_code, "www-authenticate" in refused.headers) == (401, True)
            kind = {"content-type": "application/json"}
            for size in (20_000_001, 34_000_000):
                large = client.post(path, content=b"x" * size, headers=kind)
                assert large.status_code == 413
                assert large.json()["error"]["type"] == "payload_too_large"
            largest = client.post(path, content=b"x" * 20_000_000, headers=kind)
            assert largest.status_code == 400
            assert client.get(f"{prefix}/metrics").status_code == 404

    def test_stream(self, proxy: Proxy, prefix: str) -> None:
        body = {"prompts": ["Once"], "stream": True, "max_new_tokens": 20}
        with proxy.client() as client:
            answer = client.post(f"{prefix}/v1/generate", json=body)
        assert answer.content.endswith(b"data: [DONE]\n\n")

    def test_chunk_is_passed_on_before_the_next_is_sent(self, tmp_path: Path) -> None:
        turn = threading.Semaphore(0)
        with (
            upstream(turn) as url,
            nginx(tmp_path, url.removeprefix("http://"), "127.0.0.1:9") as proxy,
            proxy.client() as client,
            client.stream("POST", "/v1/generate") as answer,
        ):
            pieces = answer.iter_raw()
            for number in range(3):
                assert next(pieces) == b"data: %d\n\n" % number
                turn.release()
            assert list(pieces) == []

    def test_translated_file_has_the_public_address(self, proxy: Proxy, prefix: str) -> None:
        with proxy.client() as client:
            answer = client.post(
                f"{prefix}/translate_file",
                data={"source": "es", "target": "en", "api_key": KEY},
                files={"file": ("a.txt", b"este restaurante")},
                headers={"x-forwarded-host": "evil.example", "x-forwarded-proto": "http"},
            )
            address = answer.json()["translatedFileUrl"]
            base = "https://models.example.org/triptych/"
            assert address.startswith(base)
            found = client.get(f"{prefix}/{address.removeprefix(base)}")
            assert (found.status_code, bool(found.content)) == (200, True)

    def test_grpc(self, proxy: Proxy) -> None:
        credentials = grpc.ssl_channel_credentials(proxy.certificate.read_bytes())
        metadata = (("authorization", f"Bearer {KEY}"),)
        with grpc.secure_channel(f"localhost:{proxy.port}", credentials) as channel:
            stub = TriptychStub(channel)
            request = pb.TranslateRequest(texts=["este restaurante"])
            assert stub.Translate(request, metadata=metadata, timeout=60).data[0].text
            generate = pb.GenerateRequest(prompts=["Once"], max_new_tokens=20)
            chunks = list(stub.GenerateStream(generate, metadata=metadata, timeout=60))
            assert len(chunks) > 3
            with pytest.raises(grpc.RpcError) as refused:
                stub.Translate(request, timeout=60)
            assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED

    def test_plain_http_is_redirected(self, proxy: Proxy) -> None:
        address = f"http://localhost:{proxy.redirect_port}/v1/models?a=b"
        answer = httpx.get(address)
        assert answer.status_code == 308
        assert answer.headers["location"] == f"{proxy.url}/v1/models?a=b"

    def test_gateway_that_was_recreated_is_found(self, tmp_path: Path) -> None:
        """Another container has another address under the same name."""
        port = free_port()
        with (
            named("127.0.0.2", port) as first,
            named("127.0.0.3", port),
            Names("127.0.0.2") as names,
            nginx(tmp_path, f"gateway:{port}", f"gateway:{port}", resolver=names.address) as proxy,
            proxy.client() as client,
        ):
            assert client.get("/health").text == "127.0.0.2"
            assert client.get("/v1/a%20b?c=d%2Fe").headers["path"] == "/v1/a%20b?c=d%2Fe"
            first.shutdown()
            first.server_close()
            names.host = "127.0.0.3"
            until_s = time.monotonic() + 20
            while client.get("/health").text != "127.0.0.3":
                assert time.monotonic() < until_s, "the new address is not used"
                time.sleep(0.2)


@contextmanager
def named(host: str, port: int) -> Iterator[ThreadingHTTPServer]:
    """A server that responds with its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-length", str(len(host)))
            self.send_header("path", self.path)
            self.end_headers()
            self.wfile.write(host.encode())

    server = ThreadingHTTPServer((host, port), Handler)
    with serving(server):
        yield server


class Names:
    """A name server that knows one address for every name."""

    def __init__(self, host: str) -> None:
        self.host = host
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._socket.getsockname()[1]}"
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Names:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.sendto(b"", self._socket.getsockname())
        self._thread.join()
        self._socket.close()

    def _run(self) -> None:
        while True:
            query, sender = self._socket.recvfrom(512)
            if not query:
                return
            end = query.index(b"\0", 12) + 5
            record = b"\xc0\x0c\0\x01\0\x01\0\0\0\x01\0\x04" + socket.inet_aton(self.host)
            head = query[:2] + b"\x81\x80\0\x01\0\x01\0\0\0\0"
            self._socket.sendto(head + query[12:end] + record, sender)
