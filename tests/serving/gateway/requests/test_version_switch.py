"""Which model and version serves a request, and switches of versions."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from inference.bundle.inputs import PromptImages
from inference.bundle.repository import Repository
from inference.errors import InvalidRequest, Unavailable
from inference.tasks import TASKS
from inference.tasks.shared.loaded_model import LoadedModel
from serving.gateway.requests.catalog import Catalog, load_catalog
from serving.gateway.requests.version_follower import VersionFollower
from serving.triton.served import Refusal, ServedVersions
from tests.inference.tiny_models import IMAGE, WordTokenizer, manifest, served, two_towers
from tests.serving.gateway.conftest import GREEDY, Gateway, MakeGateway, error_of, loaded
from tests.serving.gateway.http.test_streams import events, pieces
from tests.serving.versioned_bundles import publish_version
from tests.serving.waiting import until
from triptych.messages import Chunk

NAME = "tiny-generate"
BODY = {"prompts": ["one two", "three"]}


@pytest.fixture
def switched(gateway: Gateway) -> Gateway:
    """Triton has replaced version 3 by 4, and the catalog has not followed yet."""
    gateway.inference.retired.add((NAME, 3))
    gateway.inference.served[NAME] = 4
    return gateway


def follow(gateway: Gateway) -> None:
    gateway.service.catalog.put(loaded("generate", generation=GREEDY, version=4))


@pytest.mark.parametrize("stream", [False, True])
async def test_request_for_a_retired_version_is_prepared_again(
    switched: Gateway, stream: bool
) -> None:
    asyncio.get_running_loop().call_later(0.2, follow, switched)
    response = await switched.post("/v1/generate", json={**BODY, "stream": stream})
    if stream:
        assert not any(chunk.error for chunk in pieces(response.text))
    else:
        assert [bool(item.get("error")) for item in response.json()["data"]] == [False, False]
    assert [call.version for call in switched.inference.calls][-2:] == [4, 4]


@pytest.mark.parametrize("stream", [False, True])
async def test_it_is_prepared_again_only_once(switched: Gateway, stream: bool) -> None:
    switched.inference.retired.add((NAME, 4))
    asyncio.get_running_loop().call_later(0.2, follow, switched)
    response = await switched.post("/v1/generate", json={**BODY, "stream": stream}, status=503)
    assert error_of(response)["type"] == "unavailable"
    assert {call.version for call in switched.inference.calls} == {3, 4}
    assert len(switched.inference.calls) <= 4


@pytest.mark.parametrize("stream", [False, True])
async def test_version_that_is_loaded_again_serves_the_request(
    switched: Gateway, stream: bool
) -> None:
    """A switch that failed half-way: another part of the bundle did not load."""
    loop = asyncio.get_running_loop()
    loop.call_later(0.2, switched.inference.retired.clear)
    await switched.post("/v1/generate", json={**BODY, "stream": stream})
    assert {call.version for call in switched.inference.calls} == {3}


@pytest.mark.parametrize("stream", [False, True])
async def test_model_of_which_no_version_is_loaded_is_503_at_once(
    switched: Gateway, stream: bool
) -> None:
    del switched.inference.served[NAME]
    async with asyncio.timeout(5):
        response = await switched.http.post("/v1/generate", json={**BODY, "stream": stream})
    assert response.status_code == 503
    assert response.headers["retry-after"] == "1"


async def test_stream_that_has_begun_is_not_prepared_again(gateway: Gateway) -> None:
    refusal = Unavailable("not up", retry_after_s=1)
    refusal.is_not_loaded = True
    gateway.inference.breaks[1] = refusal
    gateway.inference.served[NAME] = 4
    follow(gateway)
    response = await gateway.post("/v1/generate", json={"prompts": "one two three", "stream": True})
    assert "unavailable" in events(response.text)[-1]
    assert len(gateway.inference.calls) == 1


async def test_calls_of_a_stream_that_have_not_begun_go_on_with_the_version_that_is_served(
    make_gateway: MakeGateway,
) -> None:
    gateway = make_gateway(max_concurrent_sequences=1)
    gateway.inference.steps = asyncio.Semaphore(1)
    body = {"prompts": ["one two", "three four", "five"], "logprobs": 1, "stream": True}
    running = asyncio.ensure_future(gateway.http.post("/v1/generate", json=body))
    await until(lambda: gateway.inference.steps.locked())
    gateway.inference.retired.add((NAME, 3))
    gateway.inference.served[NAME] = 4
    asyncio.get_running_loop().call_later(0.2, follow, gateway)
    for _ in range(9):
        gateway.inference.steps.release()
    found = pieces((await running).text)
    assert not any(chunk.error for chunk in found)
    texts = [text_of(found, index) for index in range(3)]
    assert [len(text.split()) for text in texts] == [2, 2, 1]
    assert all(chunk.logprobs for chunk in found if chunk.text)
    assert [call.version for call in gateway.inference.calls] == [3, 3, 4, 3, 4], "each in turn"
    assert found[-1].usage.completion_tokens == found[-1].usage.prompt_tokens, "it repeats them"


def text_of(chunks: list[Chunk], index: int) -> str:
    return "".join(chunk.text for chunk in chunks if chunk.index == index)


async def test_joined_calls_of_a_retired_version_are_prepared_again(
    make_gateway: MakeGateway,
) -> None:
    gateway = make_gateway([as_version(3)], max_calls_per_model=1)
    gateway.inference.hold = asyncio.Event()

    async def embed(text: str) -> int:
        return (await gateway.http.post("/v1/embed", json={"texts": text})).status_code

    running = asyncio.ensure_future(embed("a"))
    while not gateway.inference.running:
        await asyncio.sleep(0)
    waiting = [asyncio.ensure_future(embed(text)) for text in ("b", "c", "d")]
    while "triptych_queue_size 3.0" not in gateway.service.metrics.exposition().decode():
        await asyncio.sleep(0)
    (part,) = {call.model for call in gateway.inference.calls}
    gateway.inference.retired.add((part, 3))
    gateway.inference.served[part] = 4
    gateway.service.catalog.put(as_version(4))
    gateway.inference.hold.set()
    assert await asyncio.gather(running, *waiting) == [200] * 4
    calls = [(call.version, call.rows) for call in gateway.inference.calls]
    assert calls[:2] == [(3, 1), (3, 3)]
    assert sum(rows for version, rows in calls[2:] if version == 4) == 3


def as_version(version: int) -> LoadedModel:
    return served(two_towers().model_copy(update={"version": version}), WordTokenizer())


class Following:
    """A catalog that follows which versions a Triton serves of a repository."""

    def __init__(self, folder: Path) -> None:
        self.served: dict[str, int] = {}
        self.catalog = load_catalog(Repository(folder))
        self.follower = VersionFollower(Repository(folder), self.catalog, self._version)

    async def _version(self, name: str) -> int | None:
        return self.served.get(name)

    async def update(self) -> list[tuple[str, int, list[int]]]:
        """What is listed then."""
        await self.follower.update()
        return versions(self.catalog)


def versions(catalog: Catalog) -> list[tuple[str, int, list[int]]]:
    return [(row.id, row.version, row.versions) for row in catalog.listing().data]


async def test_catalog_follows_triton_not_the_repository(tmp_path: Path) -> None:
    following = Following(tmp_path)
    assert await following.update() == []
    publish_version(tmp_path)
    assert await following.update() == [], "it is not loaded yet"
    following.served["speaker"] = 1
    assert await following.update() == [("speaker", 1, [1])]
    publish_version(tmp_path)
    assert await following.update() == [("speaker", 1, [2, 1])]
    following.served["speaker"] = 2
    assert await following.update() == [("speaker", 2, [2, 1])]
    following.served.clear()
    assert await following.update() == [("speaker", 2, [2, 1])], "Triton restarts"


async def test_unreadable_version_is_logged_once_and_followed_when_it_can_be_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    publish_version(tmp_path)
    following = Following(tmp_path)
    publish_version(tmp_path)
    tokenizer = tmp_path / "speaker" / "2" / "tokenizer.json"
    whole = tokenizer.read_bytes()
    tokenizer.write_bytes(whole[:40])
    following.served["speaker"] = 2
    with caplog.at_level(logging.ERROR):
        await following.update()
        await following.update()
    [line] = [record.message for record in caplog.records if record.levelno == logging.ERROR]
    assert "cannot serve speaker version 2" in line
    assert following.catalog.version("speaker") == 1
    tokenizer.write_bytes(whole)
    await following.follower._update_versions()
    assert following.catalog.version("speaker") == 1, "it is read again with the repository only"
    await following.update()
    assert following.catalog.version("speaker") == 2


@pytest.mark.parametrize(
    "failure", [OSError(5, "Input/output error"), ValueError("no such normalizer"), MemoryError()]
)
async def test_a_version_that_fails_to_load_leaves_the_others_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    publish_version(tmp_path)
    following = Following(tmp_path)
    following.served["speaker"] = following.served["absent"] = 1
    following.catalog.remove("speaker")

    def fail(bundle: object) -> None:
        raise failure

    with monkeypatch.context() as patch:
        patch.setattr("serving.load_model.load_tokenizer", fail)
        await following.update()
        assert versions(load_catalog(Repository(tmp_path))) == [], "it is skipped at the start"
    assert versions(following.catalog) == []
    assert await following.update() == [("speaker", 1, [1])]


async def test_model_that_is_refused_is_listed_with_its_reason_and_answers_no_more(
    tmp_path: Path,
) -> None:
    publish_version(tmp_path)
    following = Following(tmp_path)
    record = ServedVersions(tmp_path / "served.json")
    refusal = Refusal(version=1, reason="speaker version 1 fails its self-check")
    record.set_refused({"speaker": refusal.model_copy(update={"instead": 1})})
    assert await following.update() == [("speaker", 1, [1])], (
        "Triton restarts with the one that answers"
    )
    record.set_refused({"speaker": refusal})
    assert await following.update() == []
    assert following.catalog.problem == refusal.reason
    [row] = following.catalog.listing().refused
    assert (row.id, row.version, row.reason) == ("speaker", 1, refusal.reason)
    record.set_refused({})
    following.served["speaker"] = 1
    assert await following.update() == [("speaker", 1, [1])]
    assert following.catalog.listing().refused == []


CHAT = TASKS["chat"]
TEXTS = {"messages": [{"role": "user", "content": "a"}]}
PICTURES = {**TEXTS, "images": ["a picture"]}


def catalog(*, default: str = "", readers: int = 1) -> Catalog:
    """One model of texts, and `readers` that read images too."""
    found = Catalog()
    for name in ("texts", *(f"pictures-{number}" for number in range(readers))):
        section: dict[str, object] = {"template": "{{ messages }}", "special_tokens": {}}
        images: dict[str, Any] = {}
        if name != "texts":
            section["images"] = {"place": "<image>"}
            images = {"images": PromptImages(positions=3, token_id=3, tokens=3), "image": IMAGE}
        made = manifest("chat", section, name=name, default=name == default, **images)
        found.put(served(made))
    return found


def chosen(models: Catalog, fields: dict[str, Any]) -> str:
    return models.resolve(CHAT, CHAT.declaration.request(**fields)).name


def test_images_go_to_the_model_that_reads_them_and_texts_to_the_other() -> None:
    assert chosen(catalog(), TEXTS) == "texts"
    assert chosen(catalog(), PICTURES) == "pictures-0"
    assert chosen(catalog(default="texts"), PICTURES) == "pictures-0"


def test_the_default_takes_texts_too_though_it_reads_images() -> None:
    assert chosen(catalog(default="pictures-0"), TEXTS) == "pictures-0"
    assert chosen(catalog(default="pictures-1", readers=2), PICTURES) == "pictures-1"


def test_several_that_read_images_are_ambiguous_without_a_default() -> None:
    models = catalog(readers=2)
    assert chosen(models, TEXTS) == "texts"
    with pytest.raises(InvalidRequest, match="one of pictures-0, pictures-1"):
        chosen(models, PICTURES)
