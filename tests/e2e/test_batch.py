"""`triptych batch` answers each row as the service answers a request that holds it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from inference.engine.scheduler import Capacity
from serving.batch.job import Job
from serving.batch.shards import Input
from serving.batch.worker import Worker, WorkerSettings
from triptych import ApiError, Client
from triptych.operation import operation
from triptych.task import item_json
from triptych.tasks import TASKS

pytestmark = pytest.mark.integration

TOLERANCE = 1e-5
"""Of stateless graphs, whose rows share calls: the last bits depend on how many do."""
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
