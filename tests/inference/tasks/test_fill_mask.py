from dataclasses import replace

import pytest

from inference.bundle.manifest import Role
from inference.tasks.fill_mask import TASK, FillMaskPlan
from inference.tasks.shared.loaded_model import LoadedModel, TaskLimits
from tests.inference.tiny_models import run
from tests.tasks.models import MODELS
from triptych.tasks.fill_mask import FilledMasks, FillMaskRequest

LIMITS = TaskLimits(max_client_batch_size=20)


@pytest.fixture
def model() -> LoadedModel:
    return MODELS["fill-mask"]()


def plan(model: LoadedModel, **fields: object) -> FillMaskPlan:
    return TASK.prepare(FillMaskRequest(**fields), (), replace(model, task_limits=LIMITS))


def fill(model: LoadedModel, **fields: object) -> list[FilledMasks]:
    made = plan(model, **fields)
    return made.finish([run(call) for call in made.calls]).data


def test_positions_are_padded_with_the_rows_first(model: LoadedModel) -> None:
    (call,) = plan(model, texts=["? a ?", "b c ?"]).calls
    assert call.inputs["positions"].tolist() == [[0, 2], [2, 2]]
    assert call.inputs["choices"].tolist() == [[0], [0]]
    assert set(call.outputs.values()) == {Role.TOP_TOKENS, Role.TOP_SCORES}
    one, other = fill(model, texts=["? a ?", "b c ?"])
    assert (len(one.masks), len(other.masks)) == (2, 1)


@pytest.mark.parametrize(("masks", "positions"), [(1, 1), (2, 2), (3, 4), (4, 4), (5, 8), (9, 12)])
def test_positions_are_a_power_of_two_or_all_tokens(
    model: LoadedModel, masks: int, positions: int
) -> None:
    text = " ".join(["?"] * masks)
    (call,) = plan(model, texts=text).calls
    assert call.inputs["positions"].tolist() == [[*range(masks), *[0] * (positions - masks)]]
    assert len(fill(model, texts=text)[0].masks) == masks


def test_listing_names_mask_token_and_limits(model: LoadedModel) -> None:
    assert TASK.details(model) == {"mask_token": "?"}
    assert TASK.limits(model) == {
        "max_top_k": 6,
        "max_targets": 100,
        "max_candidates": 2000,
    }
    assert TASK.size(FillMaskRequest(texts=["ab", "c"])) == 3


def test_canary_has_all_inputs(model: LoadedModel) -> None:
    (call,) = TASK.canary(model)
    assert set(call.inputs) == {"token_ids", "lengths", "positions", "choices"}


def test_size_counts_targets() -> None:
    assert TASK.size(FillMaskRequest(texts="ab", targets=["abc", "d"])) == 6


def test_texts_of_many_candidates_are_not_small_work(model: LoadedModel) -> None:
    made = plan(model, texts=["? " * 11] * 20, top_k=6)
    outcomes = [run(call) for call in made.calls]
    assert made.finish_size(outcomes) == 20 * 11 * 6 * 12
    assert plan(model, texts="?", targets=["red", "blue"]).finish_size([]) == 4
