"""A bundle whose embedding of an image of one pixel is its colour, and inputs for it."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from inference.bundle.repository import Repository
from inference.engine.scheduler import Capacity
from serving.batch.job import Job
from serving.batch.worker import WorkerSettings
from serving.load_model import load_model
from tests.inference.tiny_models import parse_graph, publish

NAME = "colours"
_CONFIG = """
name: "colours" backend: "onnxruntime" max_batch_size: 64
input { name: "x" data_type: TYPE_UINT8 dims: [1, 1, 3] }
output { name: "y" data_type: TYPE_FP32 dims: [1] }
"""


def embedder(repository: Path) -> Path:
    """The repository with the bundle: its embedding is red - green."""
    text = """(uint8[B, 1, 1, 3] x) => (float[B, 1] y) {
        real = Cast <to = 1> (x) flat = Reshape(real, rows) y = MatMul(flat, w)
    }"""
    weights = np.array([[1], [-1], [0]], np.float32)
    model = parse_graph(text, {"w": weights, "rows": np.array([-1, 3])})
    publish(repository, NAME, model, _CONFIG)
    return repository


def picture(number: int) -> bytes:
    """A PNG of one pixel with its number in it."""
    file = io.BytesIO()
    Image.new("RGB", (1, 1), (number % 256, number // 256 % 256, number // 65536)).save(file, "PNG")
    return file.getvalue()


def embedding(number: int) -> list[float]:
    """Of the picture with that number."""
    return [float(number % 256 - number // 256 % 256)]


def write_table(file: Path, pictures: Sequence[bytes | None], group_rows: int = 7) -> Path:
    """A Parquet file with an image, and its position as `id`, in each row."""
    columns = {"image": pa.array(pictures, pa.binary()), "id": list(range(len(pictures)))}
    pq.write_table(pa.table(columns), file, row_group_size=group_rows)
    return file


def job(**given: object) -> Job:
    """Embeddings of a column of images, as they are."""
    fields = {
        "task": "embed", "request": {}, "field": "images", "model": NAME,
        "version": 1, "column": "image", "keep": ("id",), "output_format": "jsonl",
        "shard_rows": 10, "seed": 0,
    }  # fmt: skip
    return Job.model_validate({**fields, **given})


def settings(repository: Path, output: Path | str) -> WorkerSettings:
    """One thread."""
    return WorkerSettings(repository, str(output), 1, Capacity())


def loaded(repository: Path):
    """The bundle as tasks use it."""
    return load_model(Repository(repository).open(NAME, 1))
