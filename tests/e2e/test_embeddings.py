"""Served embeddings are `transformers`' own, over HTTP, gRPC and the command line."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from transformers import CLIPModel, CLIPProcessor

from examples.scenes.scores import questions
from inference.engine.scheduler import Capacity
from serving.batch.job import Job
from serving.batch.shards import Input
from serving.batch.worker import Worker, WorkerSettings
from tests.e2e.conftest import CHECKPOINTS, Stack
from tests.pictures import encoded
from triptych import ApiError, Client, GrpcClient, cli
from triptych.operation import operation
from triptych.task import item_json
from triptych.tasks import TASKS
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
    frames = [encoded(image) for image in images]
    pictures = vectors(asked.embed(images=frames))
    np.testing.assert_allclose(texts, reference["texts"], atol=TOLERANCE)
    np.testing.assert_allclose(pictures, reference["images"], atol=TOLERANCE)
    video = vectors(asked.embed(images=frames, frame_counts=[len(frames)]))
    mean = reference["images"].mean(axis=0, keepdims=True)
    np.testing.assert_allclose(video, mean / np.linalg.norm(mean), atol=TOLERANCE)
    for found in (texts, pictures, video):
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


SPANISH = [
    "El mundo no es suficiente.",
    "",
    "La casa roja es grande. El perro negro corre.",
    "gato " * 3000,
    "Ana compra pan.",
]
ENGLISH = [
    "Ana sold the old lamp in Rome.",
    " ",
    "Pedro bought a big red hat yesterday.",
    "hat " * 3000,
]
PROMPTS = ["red, blue, red, blue,", "", "Ana likes tea. Pedro likes"]


def pictures() -> list[bytes]:
    from examples.history.task_requests import as_pngs
    from examples.scenes.rendering import render
    from examples.scenes.scene import scenes

    drawn = [render(scene, seed) for seed, scene in enumerate(scenes("train", 3, seed=4))]
    return [*as_pngs(drawn), b"no image"]


TRANSLATED = ("translate", "texts", "example-es-en", SPANISH)
GENERATED = ("generate", "prompts", "example-gpt", PROMPTS)
CASES = [
    (*TRANSLATED, {}),
    (*TRANSLATED, {"num_beams": 3, "n": 2, "return_attention": True}),
    (*TRANSLATED, {"glossary": {"casa": "home"}, "max_new_tokens": 9}),
    (*GENERATED, {"max_new_tokens": 8, "logprobs": 2}),
    (*GENERATED, {"max_new_tokens": 8, "seed": 5, "temperature": 0.9}),
    (*GENERATED, {"max_new_tokens": 30, "stop": ["e"]}),
    ("caption", "images", "example-captioner", pictures, {}),
    ("zero-shot", "images", "example-clip", pictures, {"labels": ["a red ring", "a blue square"]}),
    ("embed", "texts", "example-bert-embed", ENGLISH, {}),
    ("classify", "texts", "example-bert-sentiment", ENGLISH, {}),
]


@pytest.mark.parametrize(("task", "field", "model", "rows", "fields"), CASES)
def test_rows_are_answered_as_the_service_answers(
    client: Client,
    repository: Path,
    tmp_path: Path,
    task: str,
    field: str,
    model: str,
    rows: Any,
    fields: Mapping[str, Any],
) -> None:
    values: Sequence[Any] = rows() if callable(rows) else rows
    requests = [{field: [value], "model": model, **fields} for value in values]
    served = [answer(client, task, request) for request in requests]
    pq.write_table(pa.table({"row": values}), tmp_path / "in.parquet")
    job = Job(
        task=task, request=fields, field=field, model=model, version=version(client, model),
        column="row", output_format="jsonl", shard_rows=100,
    )  # fmt: skip
    source = Input.at(str(tmp_path / "in.parquet"))
    settings = WorkerSettings(repository, str(tmp_path / "out"), 2, Capacity())
    (shard,) = source.shards(job.shard_rows)
    report = Worker(job, source, settings).make(shard)
    if task not in STATELESS:  # which share the tokens of their labels
        assert report.tokens == sum(tokens for _, tokens in served)
    assert report.errors == sum("error" in item for item, _ in served)
    lines = (tmp_path / "out" / "part-000000.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(lines) == len(values)
    for line, (wanted, _) in zip(lines, served, strict=True):
        found = {name: value for name, value in json.loads(line).items() if name not in IDENTITY}
        if "error" in wanted:
            assert found == wanted
        else:
            assert_alike(found, wanted, TOLERANCE if task in STATELESS else 0)


IDENTITY = ("file", "row", "hash")
STATELESS = ("zero-shot", "embed", "classify")


def answer(client: Client, task: str, fields: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
    """The one item of a request, or its error, and the tokens that it took."""
    declared = TASKS[task]
    try:
        response = client.send(operation(declared, declared.response, **fields))
    except ApiError as error:
        known = {"type": error.type, "message": error.message, "field": error.field}
        return {"error": {name: value for name, value in known.items() if value is not None}}, 0
    (item,) = response.data
    usage = response.usage
    return json.loads(item_json(item)), usage.prompt_tokens + usage.completion_tokens


def version(client: Client, name: str) -> int:
    (model,) = [one for one in client.models().data if one.id == name]
    return model.version


def assert_alike(found: Any, wanted: Any, tolerance: float) -> None:
    """Equal, but for numbers that differ by less than the tolerance."""
    if isinstance(wanted, dict):
        assert found.keys() == wanted.keys()
        for name in wanted:
            assert_alike(found[name], wanted[name], tolerance)
    elif isinstance(wanted, list):
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            assert_alike(one, other, tolerance)
    elif isinstance(wanted, float) and tolerance:
        assert found == pytest.approx(wanted, abs=tolerance)
    else:
        assert found == wanted
