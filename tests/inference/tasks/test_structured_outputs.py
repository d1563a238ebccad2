"""Choices, expressions and schemas of `generate` and `chat`, from request to options."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from pydantic import ValidationError

from inference.generation import Generation
from inference.tasks.generate import TASK
from inference.tasks.generation.continuation import ContinuationPlan
from inference.tasks.shared.loaded_model import LoadedModel, TaskLimits
from tests.inference.tiny_models import WordTokenizer, manifest, served
from triptych.operation import operation
from triptych.tasks.generate import TASK as DECLARED
from triptych.tasks.generate import Example, GenerateRequest, GenerateResponse

LIMITS = TaskLimits(max_input_tokens=30)
SHOTS = [Example(input="uno", output="one")]


@pytest.fixture(params=[1, 4])
def model(request: pytest.FixtureRequest) -> LoadedModel:
    """One that searches greedily, and one that searches with beams by default."""
    defaults = Generation(pad_token_id=0, max_new_tokens=20, num_beams=request.param)
    return served(manifest("generate", generation=defaults), WordTokenizer())


def plan(model: LoadedModel, **fields: object) -> ContinuationPlan:
    return TASK.prepare(
        GenerateRequest(prompts=["a"], **fields), (), replace(model, task_limits=LIMITS)
    )


@pytest.mark.parametrize(
    "given", [{"choices": ["a", "b"]}, {"regex": "a+"}, {"json_schema": '{"type": "object"}'}]
)
def test_the_option_reaches_the_engine(model: LoadedModel, given: dict[str, object]) -> None:
    (call,) = plan(model, **given).calls
    sent = call.options.model_dump(exclude_none=True)
    assert {name: sent[name] for name in given} == given
    assert (sent["num_beams"], sent["allows_space"]) == (1, False)
    rules = model.generation.with_overrides(call.options)
    assert rules.has_structure


def test_a_schema_may_be_an_object() -> None:
    schema = {"type": "object", "properties": {"é": {"type": "string"}}}
    for made in (
        GenerateRequest(prompts=["a"], json_schema=schema),
        operation(DECLARED, GenerateResponse, prompts="a", json_schema=schema).request,
    ):
        assert json.loads(made.json_schema) == schema


def test_the_few_shot_layout_allows_its_space_and_has_no_stop(model: LoadedModel) -> None:
    (call,) = plan(model, examples=SHOTS, choices=["one", "two"]).calls
    assert call.options.allows_space
    assert call.read is None
    assert plan(model, examples=SHOTS).calls[0].options.allows_space is None


def test_characters_of_all_choices_are_bounded() -> None:
    GenerateRequest(prompts=["a"], choices=["x" * 1000] * 100)
    with pytest.raises(ValidationError, match="100001 characters in all, at most 100000"):
        GenerateRequest(prompts=["a"], choices=[*["x" * 1000] * 100, "y"])
