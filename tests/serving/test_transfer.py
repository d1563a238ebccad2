"""A server of S3's PUT and GET of objects, with keys in memory; the signature must name the key."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from inference.bundle.repository import Repository
from inference.errors import SetupError
from serving.commands.object_storage import pull as pull_command
from serving.load_model import load_model
from serving.object_storage.transfer import SUMS, open_store, parse, pull, push
from tests.collector import handled_by
from tests.serving.versioned_bundles import publish_towers, publish_version

URL = "s3://models/triptych"


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two bundles, one of them of two Triton models."""
    folder = tmp_path_factory.mktemp("repository")
    publish_towers(folder)
    publish_version(folder)
    return folder


@pytest.fixture(autouse=True)
def storage(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeS3]:
    with fake_s3() as found:
        for name, value in found.environment.items():
            monkeypatch.setenv(name, value)
        yield found


def files(folder: Path) -> dict[str, bytes]:
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def test_bundles_arrive_as_they_were_pushed(
    published: Path, storage: FakeS3, tmp_path: Path
) -> None:
    pushed = push(open_store(URL), published)
    assert set(parse(storage.objects[f"/models/triptych/{SUMS}"].decode())) == set(files(published))
    pulled = pull(open_store(URL), tmp_path, digest=pushed.digest)
    assert files(tmp_path) == files(published)
    assert (pulled.copied, pulled.kept) == (pushed.copied, 0)
    assert pull(open_store(URL), tmp_path).copied == 0, "a restarted pod has its files"
    assert push(open_store(URL), published).copied == 0


def test_only_the_models_of_named_bundles_arrive(published: Path, tmp_path: Path) -> None:
    push(open_store(URL), published)
    pull(open_store(URL), tmp_path, ["towers"])
    [bundle] = Repository(tmp_path).complete("towers")
    assert {path.name for path in tmp_path.iterdir()} == set(bundle.models)
    assert len(bundle.models) == 2
    with pytest.raises(SetupError, match="no bundle mine is stored"):
        pull(open_store(URL), tmp_path, ["mine"])


def test_gateway_reads_bundles_without_their_graphs(published: Path, tmp_path: Path) -> None:
    push(open_store(URL), published)
    assert pull_command(URL, repository=tmp_path, without_graphs=True) == 0
    sizes = {name: len(content) for name, content in files(tmp_path).items()}
    assert {size for name, size in sizes.items() if name.endswith(".onnx")} == {0}
    for name in ("towers", "speaker"):
        [bundle] = Repository(tmp_path).complete(name)
        assert load_model(bundle).name == name


def test_one_pushed_bundle_leaves_the_others_stored(published: Path, tmp_path: Path) -> None:
    push(open_store(URL), published, ["towers"])
    push(open_store(URL), published, ["speaker"])
    pull(open_store(URL), tmp_path)
    assert files(tmp_path) == files(published)
    with pytest.raises(SetupError, match="has no bundle mine"):
        push(open_store(URL), published, ["mine"])


def test_changed_file_is_refused_and_its_bundle_stays_incomplete(
    published: Path, storage: FakeS3, tmp_path: Path
) -> None:
    push(open_store(URL), published)
    [graph] = [path for path in storage.objects if path.endswith("/step.onnx")]
    content = storage.objects[graph]
    storage.objects[graph] = content[:-1] + bytes([content[-1] ^ 1])
    with pytest.raises(SetupError, match=r"speaker/1/step\.onnx has the SHA-256"):
        pull(open_store(URL), tmp_path)
    assert "speaker" not in Repository(tmp_path).names()
    assert not [path for path in files(tmp_path) if path.endswith((".part", "step.onnx"))]
    storage.objects[graph] = content
    pull(open_store(URL), tmp_path)
    assert files(tmp_path) == files(published), "a further start heals it"


def test_repository_that_was_replaced_is_refused_by_its_digest(
    published: Path, tmp_path: Path
) -> None:
    before = push(open_store(URL), published, ["towers"])
    push(open_store(URL), published)
    with pytest.raises(SetupError, match="it was changed"):
        pull(open_store(URL), tmp_path, digest=before.digest)
    assert files(tmp_path) == {}


@pytest.mark.parametrize(
    "line", ["../x", "/etc/passwd", "a/../../x", "a\\b"], ids=["above", "absolute", "within", "\\"]
)
def test_path_that_leaves_the_repository_is_refused(line: str) -> None:
    with pytest.raises(SetupError, match="line 2: the path leaves the repository"):
        parse(f"{'0' * 64}  a\n{'0' * 64}  {line}\n")


def test_failures_are_one_line(
    published: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SetupError, match="run `triptych push` first"):
        pull(open_store(URL), tmp_path)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "another")
    with pytest.raises(SetupError, match=r"^push failed: [^\n]*$"):
        push(open_store(URL), published)
    with pytest.raises(SetupError, match=r"^cannot open the object storage: [^\n]*$"):
        open_store("ftp://models")


ACCESS_KEY = "access-key"


@dataclass
class FakeS3:
    """Path of an object (`/bucket/key`) → its content."""

    objects: dict[str, bytes] = field(default_factory=dict)
    address: str = ""

    @property
    def environment(self) -> dict[str, str]:
        """What a pod gets from its ConfigMap and Secret, and permission to do without TLS."""
        return {
            "AWS_ENDPOINT_URL": self.address,
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_ALLOW_HTTP": "true",
        }


@contextmanager
def fake_s3() -> Iterator[FakeS3]:
    state = FakeS3()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_PUT(self) -> None:
            content = self.rfile.read(int(self.headers["content-length"]))
            if self._is_signed():
                state.objects[self.path] = content
                self._send(200, b"", etag='"1"')

        def do_GET(self) -> None:
            if self._is_signed():
                found = state.objects.get(self.path)
                missing = b"<Error><Code>NoSuchKey</Code></Error>"
                self._send(*((200, found) if found is not None else (404, missing)), etag='"1"')

        def _is_signed(self) -> bool:
            signed = f"Credential={ACCESS_KEY}/" in self.headers.get("authorization", "")
            if not signed:
                self._send(403, b"<Error><Code>AccessDenied</Code></Error>")
            return signed

        def _send(self, status: int, body: bytes, etag: str = "") -> None:
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.send_header("last-modified", "Tue, 24 Nov 2026 12:00:00 GMT")
            if etag:
                self.send_header("etag", etag)
            self.end_headers()
            self.wfile.write(body)

    with handled_by(Handler) as state.address:
        yield state
