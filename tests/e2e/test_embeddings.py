"""Served embeddings are `transformers`' own, over HTTP, gRPC and the command line."""

from __future__ import annotations

import base64
from pathlib import Path

import httpx
import numpy as np
import openai
import pytest
import torch
from PIL import Image
from transformers import CLIPModel, CLIPProcessor

from examples.scenes.scores import questions
from tests.e2e.conftest import CHECKPOINTS, Stack
from tests.pictures import encoded
from triptych import Client, GrpcClient, cli
from triptych.tasks.embed import EmbedResponse

pytestmark = pytest.mark.integration

TOLERANCE = 1e-5
TEXTS = ["red circle", "a small blue square on a green background", "red", "dotted ring", "red"]


@pytest.fixture(scope="module")
def images() -> list[Image.Image]:
    return [question.picture for question in questions(10, seed=5)]


@pytest.fixture(scope="module")
def reference(images: list[Image.Image]) -> dict[str, np.ndarray]:
    """Embeddings of `transformers`, scaled to unit length."""
    folder = CHECKPOINTS / "example-clip"
    model = CLIPModel.from_pretrained(folder, dtype=torch.float32).eval()
    processor = CLIPProcessor.from_pretrained(folder, use_fast=False)
    with torch.no_grad():
        texts = model.get_text_features(**processor(text=TEXTS, return_tensors="pt", padding=True))
        pixels = processor(images=images, return_tensors="pt")["pixel_values"]
        pictures = model.get_image_features(pixels)
    features = {"texts": texts, "images": pictures}
    vectors = {name: getattr(f, "pooler_output", f).numpy() for name, f in features.items()}
    return {name: v / np.linalg.norm(v, axis=1, keepdims=True) for name, v in vectors.items()}


def vectors(response: EmbedResponse) -> np.ndarray:
    assert response.model == "example-clip"
    return np.array([item.embedding for item in response.data])


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_embeddings_equal_transformers(
    client: Client,
    grpc_client: GrpcClient,
    protocol: str,
    images: list[Image.Image],
    reference: dict[str, np.ndarray],
) -> None:
    asked = client if protocol == "http" else grpc_client
    texts = vectors(asked.embed(TEXTS))
    pictures = vectors(asked.embed(images=[encoded(image) for image in images]))
    np.testing.assert_allclose(texts, reference["texts"], atol=TOLERANCE)
    np.testing.assert_allclose(pictures, reference["images"], atol=TOLERANCE)
    for found in (texts, pictures):
        np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1.0, atol=TOLERANCE)


def test_a_text_does_not_depend_on_its_batch(client: Client) -> None:
    together = vectors(client.embed(TEXTS))
    alone = np.concatenate([vectors(client.embed(text)) for text in TEXTS])
    np.testing.assert_allclose(alone, together, atol=1e-6)


def test_command_writes_a_numpy_file(
    stack: Stack, client: Client, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines, output = tmp_path / "texts.txt", tmp_path / "texts.npy"
    lines.write_text("\n".join(TEXTS) + "\n")
    command = ["embed", "--url", stack.url, "--file", str(lines), "--output", str(output)]
    assert cli.run(command) == 0, capsys.readouterr().err
    written = np.load(output)
    assert written.dtype == np.float32
    np.testing.assert_allclose(written, vectors(client.embed(TEXTS)), atol=1e-6)


def test_vectors_for_the_client_of_openai(
    stack: Stack, images: list[Image.Image], reference: dict[str, np.ndarray]
) -> None:
    files = [base64.b64encode(encoded(image)).decode() for image in images]
    url = f"{stack.url}/v1"
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=60) as made:
        texts = made.embeddings.create(model="example-clip", input=TEXTS)
        image = {"modality": "image"}
        pictures = made.embeddings.create(model="example-clip", input=files, extra_body=image)
    found = [[item.embedding for item in response.data] for response in (texts, pictures)]
    np.testing.assert_allclose(found[0], reference["texts"], atol=TOLERANCE)
    np.testing.assert_allclose(found[1], reference["images"], atol=TOLERANCE)


def test_tensors_of_the_open_inference_protocol_give_the_same_vectors(
    stack: Stack, reference: dict[str, np.ndarray]
) -> None:
    processor = CLIPProcessor.from_pretrained(CHECKPOINTS / "example-clip", use_fast=False)
    encoded_texts = processor(text=TEXTS, return_tensors="np", padding=True)
    ids, lengths = encoded_texts["input_ids"], encoded_texts["attention_mask"].sum(axis=1)
    inputs = [
        {"name": name, "shape": list(array.shape), "datatype": kind, "data": array.tolist()}
        for name, array, kind in (("token_ids", ids, "INT64"), ("lengths", lengths, "INT32"))
    ]
    url = f"{stack.url}/v2/models/example-clip-text"
    assert httpx.get(f"{url}/ready").json()["ready"] is True
    answer = httpx.post(f"{url}/infer", json={"inputs": inputs})
    assert answer.status_code == 200, answer.text
    [output] = answer.json()["outputs"]
    found = np.reshape(output["data"], output["shape"])
    found /= np.linalg.norm(found, axis=1, keepdims=True)
    np.testing.assert_allclose(found, reference["texts"], atol=TOLERANCE)
