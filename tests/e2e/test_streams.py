"""Streams through the real stack: the same text as unstreamed responses, as it is generated."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from PIL import Image

from examples.history.task_requests import as_png
from examples.scenes.scores import heldout_pictures
from examples.texts.grammar import ENGLISH, SPANISH, sentences
from tests.e2e.conftest import Stack
from triptych import AsyncClient, Client
from triptych.client.grpc_client import GrpcClient
from triptych.messages import Chunk

pytestmark = pytest.mark.integration
FROM_SPANISH = {"model": "example-es-en"}
CAPTIONER = {"model": "example-captioner"}


@pytest.fixture(scope="module")
def spanish() -> list[str]:
    return [pair.spanish for pair in sentences("compositional", 32, seed=5)]


@pytest.fixture(scope="module")
def pictures() -> list[Image.Image]:
    return [picture for _, picture in heldout_pictures(6, seed=5)]


def texts(pieces: list[Chunk]) -> list[str]:
    """Each item's text, in the order asked; nothing follows an item's last piece."""
    found: dict[int, str] = {}
    ended: set[int] = set()
    for piece in pieces:
        assert piece.index not in ended
        assert piece.error is None
        found[piece.index] = found.get(piece.index, "") + piece.text
        if piece.finish_reason:
            ended.add(piece.index)
    assert ended == set(found)
    return [found[index] for index in sorted(found)]


def test_streamed_translations_are_the_whole_ones(
    client: Client, grpc_client: GrpcClient, spanish: list[str]
) -> None:
    whole = client.translate(spanish, num_beams=1, **FROM_SPANISH)
    pieces = list(client.translate_stream(spanish, **FROM_SPANISH))
    assert texts(pieces) == [item.text for item in whole.data]
    assert pieces[-1].usage == whole.usage
    assert texts(list(grpc_client.translate_stream(spanish, **FROM_SPANISH))) == texts(pieces)


def test_a_stream_of_a_model_with_beams_is_greedy_everywhere(
    stack: Stack, client: Client, grpc_client: GrpcClient, spanish: list[str]
) -> None:
    """A raw request, the clients and the command send the same and read the same."""
    text = spanish[0]
    greedy = client.translate(text, num_beams=1, **FROM_SPANISH).data[0].text
    body = {"texts": text, "stream": True, **FROM_SPANISH}
    raw = httpx.post(f"{stack.url}/v1/translate", json=body, timeout=30).text.split("\n\n")
    command = [
        *(str(Path(sys.executable).with_name("triptych")), "translate", text, "--stream"),
        *("--json", "--url", stack.url, "--model", FROM_SPANISH["model"]),
    ]
    printed = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    streams = [
        [Chunk.model_validate_json(event.removeprefix("data: ")) for event in raw[:-2]],
        list(client.translate_stream(text, **FROM_SPANISH)),
        list(grpc_client.translate_stream(text, **FROM_SPANISH)),
        [Chunk.model_validate_json(line) for line in printed.stdout.splitlines()],
    ]
    for chunks in streams:
        assert "".join(chunk.text for chunk in chunks) == greedy
        *others, last = chunks
        assert last.is_greedy
        assert all(chunk.is_greedy is None for chunk in others)


def test_streamed_captions_are_the_whole_ones(
    client: Client, grpc_client: GrpcClient, pictures: list[Image.Image]
) -> None:
    files = [as_png(picture) for picture in pictures]
    whole = [item.text for item in client.caption(files, num_beams=1, **CAPTIONER).data]
    assert texts(list(client.caption_stream(files, **CAPTIONER))) == whole
    assert texts(list(grpc_client.caption_stream(files, **CAPTIONER))) == whole


def test_a_stream_does_not_depend_on_who_streams_beside_it(
    client: Client, spanish: list[str]
) -> None:
    whole = [item.text for item in client.translate(spanish, num_beams=1, **FROM_SPANISH).data]
    with ThreadPoolExecutor(16) as pool:
        alone = pool.map(
            lambda text: texts(list(client.translate_stream(text, **FROM_SPANISH))), spanish
        )
    assert [text for (text,) in alone] == whole


def test_a_paragraph_streams_with_its_line_breaks(client: Client) -> None:
    greedy = client.translate(SPANISH, num_beams=1, **FROM_SPANISH).data[0].text
    pieces = list(client.translate_stream(SPANISH, **FROM_SPANISH))
    assert texts(pieces) == [greedy] == [ENGLISH]
    assert len(pieces) > 3  # it came in pieces


async def test_async_streams_run_side_by_side(stack: Stack, spanish: list[str]) -> None:
    async with AsyncClient(stack.url) as client:
        whole = [
            item.text
            for item in (await client.translate(spanish[:2], num_beams=1, **FROM_SPANISH)).data
        ]
        first, second = (client.translate_stream(text, **FROM_SPANISH) for text in spanish[:2])
        began = [await anext(first), await anext(second)]
        for piece, stream in zip(began, (first, second), strict=True):
            rest = [piece, *[piece async for piece in stream]]
            assert texts(rest)[0] == whole.pop(0)
