"""Operations: arguments in any form of the clients' methods become a validated request."""

import pytest

from triptych.errors import InvalidArgument
from triptych.operation import operation, stream_operation
from triptych.tasks.generate import TASK as GENERATE
from triptych.tasks.generate import Example, GenerateResponse
from triptych.tasks.zero_shot import TASK as ZERO_SHOT
from triptych.tasks.zero_shot import ZeroShotResponse


def test_any_iterable_stands_for_a_list() -> None:
    made = operation(
        GENERATE,
        GenerateResponse,
        prompts=(text for text in "ab"),
        stop=iter(["\n"]),
        examples=iter([("x", "y")]),
        logit_bias={3: 1.0},
    )
    assert made.request == GENERATE.request(
        prompts=["a", "b"],
        stop=["\n"],
        examples=[Example(input="x", output="y")],
        logit_bias={3: 1.0},
    )
    assert (made.method, made.path, made.response) == (
        "Generate",
        "/v1/generate",
        GenerateResponse,
    )


def test_one_string_stands_for_a_list_of_one() -> None:
    made = operation(ZERO_SHOT, ZeroShotResponse, images=[b"png"], labels="x", templates="a {}")
    fields = made.request.model_dump(exclude_none=True)
    assert fields == {"images": ["cG5n"], "labels": ["x"], "templates": ["a {}"]}


def test_stream_sets_nothing_but_the_stream() -> None:
    made = stream_operation(GENERATE, prompts="a")
    assert made.method == "GenerateStream"
    assert made.request == GENERATE.request(prompts=["a"], stream=True)


def test_empty_map_is_left_out() -> None:
    made = operation(GENERATE, GenerateResponse, prompts="a", logit_bias={})
    assert made.request == GENERATE.request(prompts=["a"])


@pytest.mark.parametrize("pair", [("a",), ("a", "b", "c"), "abc"])
def test_tuple_of_another_length_is_refused(pair: object) -> None:
    with pytest.raises(InvalidArgument, match=r"examples: expected \(input, output\)"):
        operation(GENERATE, GenerateResponse, prompts="a", examples=[pair])


def test_unknown_field_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="beams"):
        operation(GENERATE, GenerateResponse, prompts="a", beams=4)


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"prompts": ["a", "b\udcff"]}, "prompts.1"),
        ({"prompts": "a", "instruction": "\ud800"}, "instruction"),
        ({"prompts": "a", "examples": [("x", "\udcff")]}, "examples.0.output"),
    ],
)
def test_text_that_no_encoding_can_hold_is_refused(fields: dict, place: str) -> None:
    with pytest.raises(InvalidArgument, match=f"^{place}: not valid Unicode text"):
        operation(GENERATE, GenerateResponse, **fields)
