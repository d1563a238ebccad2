"""Profiles follow from limits and buckets, and leave out no shape that is served."""

from __future__ import annotations

import pytest

from export.targets.tensorrt.profiles import (
    SHORT,
    check_profiles,
    largest_rows,
    takes,
    with_profiles,
)
from inference.bundle.manifest import Graph, Limits, Profile, Role, Tensor
from inference.errors import SetupError
from inference.tasks.shared.length_buckets import ROWS, Padding, buckets, padded_length
from inference.tasks.shared.model_calls import MAX_ROWS
from tests.export.pipeline.test_publish import IMAGE, TEXT
from triptych.tasks.fill_mask import MAX_TARGETS

MASKS = TEXT.model_copy(
    update={
        "inputs": (
            *TEXT.inputs,
            Tensor(name="positions", dtype="int64", shape=("B", "M"), role=Role.POSITIONS),
            Tensor(name="choices", dtype="int64", shape=("B", "N"), role=Role.CHOICES),
        )
    }
)


def test_images_have_a_profile_for_a_call_and_one_for_joined_calls() -> None:
    graph = with_profiles(IMAGE, Limits(), "image")
    assert [each.shapes["pixels"] for each in graph.profiles] == [
        ((1, 4, 6, 3), (ROWS, 4, 6, 3), (ROWS, 4, 6, 3)),
        ((1, 4, 6, 3), (MAX_ROWS // 2, 4, 6, 3), (MAX_ROWS, 4, 6, 3)),
    ]


def test_texts_have_profiles_for_short_ones_and_for_all() -> None:
    graph = with_profiles(TEXT, Limits(max_input_tokens=512), "text")
    largest = [each.shapes["token_ids"][2] for each in graph.profiles]
    assert largest == [(ROWS, SHORT), (MAX_ROWS, SHORT), (ROWS, 512), (MAX_ROWS, 512)]
    assert {each.shapes["lengths"][2] for each in graph.profiles} == {(ROWS,), (MAX_ROWS,)}
    short = with_profiles(TEXT, Limits(max_input_tokens=48), "text")
    assert [each.shapes["token_ids"][1] for each in short.profiles] == [
        (ROWS, 24),
        (MAX_ROWS // 2, 24),
    ]


def test_every_profile_grows_from_least_to_largest() -> None:
    for limit in (1, 7, 64, 65, 130, 8192):
        for profile in with_profiles(MASKS, Limits(max_input_tokens=limit), "x").profiles:
            for shapes in profile.shapes.values():
                for least, tuned, largest in zip(*shapes, strict=True):
                    assert 1 <= least <= tuned <= largest


def test_rows_that_are_joined_shrink_with_the_limit_but_never_below_a_call() -> None:
    rows = [largest_rows(TEXT, Limits(max_input_tokens=t)) for t in (128, 512, 2048, 8192, 32768)]
    assert rows == [64, 64, 16, ROWS, ROWS]
    assert largest_rows(MASKS, Limits(max_input_tokens=128)) == ROWS
    assert largest_rows(IMAGE, Limits(max_input_tokens=77)) == MAX_ROWS


@pytest.mark.parametrize("graph", [TEXT, MASKS, IMAGE])
@pytest.mark.parametrize("limit", [1, 8, 63, 77, 512, 2050])
def test_profiles_cover_every_bucket(graph: Graph, limit: int) -> None:
    limits = Limits(max_input_tokens=limit)
    check_profiles(with_profiles(graph, limits, "x"), limits, "x")


def test_profile_that_leaves_out_a_bucket_is_refused() -> None:
    """A planted fault: the longest bucket is cut off."""
    limits = Limits(max_input_tokens=128)
    graph = with_profiles(TEXT, limits, "text")
    short = graph.model_copy(update={"profiles": graph.profiles[:2]})
    with pytest.raises(SetupError, match="no TensorRT profile of text takes B = 1, T = 72"):
        check_profiles(short, limits, "text")
    alone = graph.model_copy(update={"profiles": graph.profiles[::2]})
    with pytest.raises(SetupError, match="no TensorRT profile of text takes B = 64, T = 1"):
        check_profiles(alone, limits, "text")


def test_profile_that_leaves_out_masks_or_targets_is_refused() -> None:
    limits = Limits(max_input_tokens=32)
    graph = with_profiles(MASKS, limits, "text")
    for name, most in (("positions", (ROWS, 31)), ("choices", (ROWS, MAX_TARGETS - 1))):
        shapes = dict(graph.profiles[0].shapes)
        shapes[name] = (*shapes[name][:2], most)
        cut = graph.model_copy(update={"profiles": (Profile(shapes=shapes),)})
        with pytest.raises(SetupError, match="no TensorRT profile of text takes"):
            check_profiles(cut, limits, "text")


def test_lengths_are_those_of_the_gateways_buckets() -> None:
    """What `check_profiles` enumerates is what `buckets` pads to."""
    for limit in (5, 8, 30, 77):
        made = {
            bucket.token_ids.shape[1]
            for n in range(1, limit + 1)
            for bucket in buckets([[0] * n], Padding(0), limit)
        }
        assert made == {padded_length(n, limit) for n in range(1, limit + 1)}


def test_no_limit_is_refused() -> None:
    with pytest.raises(SetupError, match="no limit on the tokens of text: a TensorRT plan needs"):
        with_profiles(TEXT, Limits(), "text")


def test_unknown_dimension_is_refused() -> None:
    port = Tensor(name="frames", dtype="uint8", shape=("B", "I", 4))
    with pytest.raises(SetupError, match=r"film has dimensions without a range .*\['I'\]"):
        with_profiles(Graph(file="model.onnx", inputs=(port,), outputs=()), Limits(), "film")


def test_text_beyond_the_limit_fits_no_profile() -> None:
    graph = with_profiles(TEXT, Limits(max_input_tokens=77), "text")
    sizes = {"B": 1, "T": 78, "M": 1, "N": 1}
    assert not any(takes(profile, graph, sizes) for profile in graph.profiles)
