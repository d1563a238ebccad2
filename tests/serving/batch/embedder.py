"""A bundle whose embedding of an image of one pixel is its colour, and inputs for it."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from onnx import TensorProto, helper
from PIL import Image

from inference.bundle.repository import Repository
from inference.engine.scheduler import Capacity
from serving.batch.job import Job
from serving.batch.worker import WorkerSettings
from serving.load_model import load_model
from tests.inference.tiny_models import graph, publish

NAME = "colours"
_CONFIG = """
name: "colours" backend: "onnxruntime" max_batch_size: 64
input { name: "x" data_type: TYPE_UINT8 dims: [1, 1, 3] }
output { name: "y" data_type: TYPE_FP32 dims: [1] }
"""


def embedder(repository: Path) -> Path:
    """The repository with the bundle: its embedding is red - green."""
    pixels = ("x", TensorProto.UINT8, ("B", 1, 1, 3))
    weights = helper.make_tensor("w", TensorProto.FLOAT, (3, 1), [1.0, -1.0, 0.0])
    rows = helper.make_tensor("rows", TensorProto.INT64, (2,), [-1, 3])
    nodes = [
        helper.make_node("Cast", ["x"], ["real"], to=TensorProto.FLOAT),
        helper.make_node("Reshape", ["real", "rows"], ["flat"]),
        helper.make_node("MatMul", ["flat", "w"], ["y"]),
    ]
    model = graph(nodes, [pixels], [("y", TensorProto.FLOAT, ("B", 1))], [weights, rows])
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
