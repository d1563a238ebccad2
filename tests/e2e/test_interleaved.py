"""Prompts with images behind HTTP and gRPC against Idefics' own processor and `generate`."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from tests.e2e.conftest import Stack, running
from tests.e2e.interleaved import NEW_TOKENS, REPOSITORY, Original, random_pictures
from triptych import Client
from triptych.cli import app
from triptych.client.grpc_client import GrpcClient

pytestmark = [pytest.mark.integration, pytest.mark.full]

PROMPTS = [
    "<image> w3 w4 <image> w5",
    "w6 w7",
    "<image><image> w8 <image>",
    "w9 <image> w1 </s> w2",
]
"""With two images, none, three, and one that the last words do not read."""
COUNTS = [prompt.count("<image>") for prompt in PROMPTS]
IMAGES = random_pictures(sum(COUNTS))


@pytest.fixture(scope="module")
def original(interleaved: Path) -> Original:
    return Original.read(interleaved)


@pytest.fixture(scope="module")
def served(interleaved: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with running(interleaved / REPOSITORY, tmp_path_factory.mktemp("interleaved")) as stack:
        yield stack


def _wanted(original: Original, beams: int = 1) -> list[list[str]]:
    starts = np.cumsum([0, *COUNTS])
    return [
        original.outputs(prompt, IMAGES[start : start + count], beams)
        for prompt, start, count in zip(PROMPTS, starts, COUNTS, strict=False)
    ]


def test_prompts_with_images_continue_as_in_transformers(served: Stack, original: Original) -> None:
    """All protocols, several prompts in one request."""
    wanted = [outputs[0] for outputs in _wanted(original)]
    with Client(served.url) as http, GrpcClient(served.grpc_address) as grpc:
        for client in (http, grpc):
            answer = client.generate(PROMPTS, images=IMAGES, max_new_tokens=NEW_TOKENS)
            assert [item.text for item in answer.data] == wanted
    form = {"prompts": PROMPTS, "max_new_tokens": str(NEW_TOKENS)}
    files = [("images", ("a.png", image, "image/png")) for image in IMAGES]
    posted = httpx.post(f"{served.url}/v1/generate", data=form, files=files)
    assert [item["text"] for item in posted.json()["data"]] == wanted
    (listed,) = httpx.get(f"{served.url}/v1/models").json()["data"]
    assert (listed["image_place"], listed["limits"]["max_prompt_images"]) == ("<image>", 16)


def test_wrong_images_are_refused_in_words(served: Stack) -> None:
    text = base64.b64encode(IMAGES[0]).decode()
    for prompts, images, message in (
        ("<image>", None, "1 <image> places, images holds 0"),
        (["<image>", "w1"], [text] * 2, "1 + 0 <image> places, images holds 2"),
        ("<image>" * 17, [text] * 17, "holds 17 images"),
    ):
        body = {"prompts": prompts} | ({"images": images} if images else {})
        answer = httpx.post(f"{served.url}/v1/generate", json=body)
        assert answer.status_code == 422
        assert message in answer.json()["error"]["message"]
    with Client(served.url) as client:
        first, second = client.generate(
            ["<image>", "<image>"], images=[b"no image at all", IMAGES[0]], max_new_tokens=1
        ).data
    assert first.error.field == "images.0"
    assert second.error is None


def test_beams_are_those_of_transformers(served: Stack, original: Original) -> None:
    with Client(served.url) as client:
        answer = client.generate(
            PROMPTS, images=IMAGES, max_new_tokens=NEW_TOKENS, num_beams=3, n=3
        )
    given = [[one.text for one in item.alternatives or ()] for item in answer.data]
    assert given == _wanted(original, beams=3)


def test_streams_and_long_answers_are_the_whole_text(served: Stack, original: Original) -> None:
    wanted = _wanted(original)[0][0]
    with Client(served.url) as client:
        chunks = client.generate_stream(
            PROMPTS[0], images=IMAGES[: COUNTS[0]], max_new_tokens=NEW_TOKENS
        )
        assert "".join(chunk.text for chunk in chunks) == wanted


def test_examples_share_their_images(served: Stack, original: Original) -> None:
    prompts = ["<image>", "w3 <image>"]
    with Client(served.url) as client:
        answer = client.generate(
            prompts,
            examples=[("<image>", "w5")],
            images=IMAGES[:3],
            max_new_tokens=NEW_TOKENS,
            stop="never",
        )
    wanted = [
        original.outputs(f"<image> => w5\n{prompt} =>", [IMAGES[0], IMAGES[own]])[0]
        for own, prompt in enumerate(prompts, start=1)
    ]
    assert [item.text for item in answer.data] == [text.lstrip(" ") for text in wanted]


def test_caption_continues_behind_the_image(served: Stack, original: Original) -> None:
    with Client(served.url) as client:
        answer = client.caption(IMAGES[:2], prompt="w3 w4", max_new_tokens=NEW_TOKENS)
    for item, image in zip(answer.data, IMAGES, strict=False):
        assert item.text == f"w3 w4 {original.outputs('<image>w3 w4', [image])[0]}".strip()


def test_echo_scores_the_words_of_a_prompt(served: Stack, original: Original) -> None:
    with Client(served.url) as client:
        (item,) = client.generate(
            PROMPTS[0], images=IMAGES[:2], max_new_tokens=1, echo=True, logprobs=0
        ).data
    first, second = (Image.open(io.BytesIO(image)) for image in IMAGES[:2])
    inputs = original.processor(text=[[first, "w3 w4", second, "w5"]], return_tensors="pt")
    with torch.no_grad():
        scores = original.model(**inputs).logits[0].log_softmax(dim=-1)
    ids = inputs["input_ids"][0]
    wanted = scores[:-1].gather(1, ids[1:, None])[:, 0].tolist()
    given = [token.logprob for token in item.prompt_logprobs or ()]
    assert given[1:] == pytest.approx(wanted, abs=1e-4)
    assert item.text.startswith(PROMPTS[0])


def test_command_sends_images(served: Stack, original: Original, tmp_path: Path) -> None:
    names = [tmp_path / f"{number}.png" for number in range(2)]
    for name, image in zip(names, IMAGES, strict=False):
        name.write_bytes(image)
    flags = [flag for name in names for flag in ("--image", str(name))]
    command = ["generate", PROMPTS[0], *flags, "--max-new-tokens", str(NEW_TOKENS)]
    done = CliRunner().invoke(app, [*command, "--url", served.url])
    assert done.exit_code == 0, done.output
    assert done.output.strip() == _wanted(original)[0][0].strip()


def test_requests_with_other_numbers_of_images_share_batches(
    served: Stack, original: Original
) -> None:
    """Rows join and leave while others run; every prompt alone, and all at once."""
    wanted = [outputs[0] for outputs in _wanted(original)]
    starts = np.cumsum([0, *COUNTS])
    with Client(served.url) as client:
        for prompt, start, count, text in zip(PROMPTS, starts, COUNTS, wanted, strict=False):
            images = IMAGES[start : start + count] or None
            answer = client.generate(prompt, images=images, max_new_tokens=NEW_TOKENS)
            assert answer.data[0].text == text
        many = client.generate(PROMPTS * 3, images=IMAGES * 3, max_new_tokens=NEW_TOKENS)
    assert [item.text for item in many.data] == wanted * 3
