"""Texts batched by length; equal ones once; only the inputs that a graph has."""

from dataclasses import replace

import numpy as np
import pytest

from inference.bundle.manifest import Part, Role
from inference.processing.tokenizer import EncodedText
from inference.tasks.shared.length_buckets import LARGE, ROWS
from inference.tasks.shared.loaded_model import LoadedModel
from inference.tasks.shared.model_calls import Array, InferCall
from inference.tasks.shared.text_rows import TextRows
from tests.inference.text_models import text_classifier, word_labeller
from tests.inference.tiny_models import served, two_towers


def text(*ids: int, segment: int = 0) -> EncodedText:
    return EncodedText(ids, [segment] * len(ids), [0] * len(ids))


def part(model: LoadedModel) -> Part:
    return model.part(takes=Role.TOKENS, returns=Role.LOGITS)


def values(calls: list[InferCall], name: str) -> list[list[list[int]]]:
    return [call.inputs[name].tolist() for call in calls]


def test_texts_of_similar_length_share_a_call() -> None:
    model = served(text_classifier())
    rows, calls = TextRows(model), []
    texts = [text(*range(10, 10 + length)) for length in (2, 9, 8, 12)]
    numbers = [rows.add(each) for each in texts]
    found = rows.batch(part(model), (Role.LOGITS,), calls)
    assert [call.inputs["token_ids"].shape for call in calls] == [(2, 8), (2, 12)]
    for number, each in zip(numbers, texts, strict=True):
        call = calls[found[number].call]
        row, length = found[number].row, len(each)
        assert call.inputs["token_ids"][row, :length].tolist() == list(each.ids)
        assert not call.inputs["token_ids"][row, length:].any()
        assert call.inputs["lengths"][row] == length


def test_many_texts_have_narrower_and_larger_calls() -> None:
    rows, calls = TextRows(replace(served(text_classifier()), sizes=LARGE)), []
    most = LARGE.tokens // 2
    for number in range(most + 1):
        rows.add(text(number + 3))
    rows.add(text(3, 4, 5))
    found = rows.batch(part(rows.model), (Role.LOGITS,), calls)
    shapes = [call.inputs["token_ids"].shape for call in calls]
    assert shapes == [(most, 2), (1, 2), (1, 4)]
    assert [(row.call, row.row) for row in found[most - 1 :]] == [(0, most - 1), (1, 0), (2, 0)]
    assert LARGE.rows(128) == ROWS


def test_equal_ids_of_other_segments_are_other_texts() -> None:
    rows = TextRows(served(text_classifier()))
    numbers = [rows.add(text(5, 6)), rows.add(text(5, 6, segment=1)), rows.add(text(5, 6))]
    assert numbers == [0, 1, 0]
    calls: list[InferCall] = []
    rows.batch(part(rows.model), (Role.LOGITS,), calls)
    assert values(calls, "segments") == [[[0] * 8, [1, 1, *[0] * 6]]]


def test_calls_have_eight_rows_at_most() -> None:
    rows, calls = TextRows(served(text_classifier())), []
    for number in range(2 * ROWS + 1):
        rows.add(text(number + 3))
    found = rows.batch(part(rows.model), (Role.LOGITS,), calls)
    assert [len(call.inputs["token_ids"]) for call in calls] == [ROWS, ROWS, 1]
    assert (found[ROWS].call, found[ROWS].row) == (1, 0)


def test_calls_follow_those_of_the_plan() -> None:
    rows, calls = TextRows(served(text_classifier())), []
    rows.add(text(3))
    rows.batch(part(rows.model), (Role.LOGITS,), calls)
    (second,) = rows.batch(part(rows.model), (Role.LOGITS,), calls)
    assert second.call == 1


@pytest.mark.parametrize("has_further", [True, False])
def test_graph_gets_the_inputs_that_it_has(has_further: bool) -> None:
    rows, calls = TextRows(served(word_labeller())), []
    rows.add(text(3, segment=1))
    further: dict[Role, Array] = {Role.POSITIONS: np.zeros((1, 1), np.int64)}
    made = (lambda bucket: further) if has_further else (lambda bucket: {})
    rows.batch(part(rows.model), (Role.LOGITS,), calls, made)
    assert set(calls[0].inputs) == {"token_ids", "lengths"}


def test_no_text_needs_no_call() -> None:
    rows, calls = TextRows(served(text_classifier())), []
    assert rows.batch(part(rows.model), (Role.LOGITS,), calls) == []
    assert calls == []


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("width", [5, "T"])
def test_padding_is_on_the_tokenizers_side_where_the_graph_reads_it(
    side: str, width: int | str
) -> None:
    described = two_towers()
    tokens, lengths = described.graphs["text"].inputs
    ports = (tokens.model_copy(update={"shape": ("B", width)}), lengths)
    graph = described.graphs["text"].model_copy(update={"inputs": ports})
    assert described.tokenizer is not None
    spec = described.tokenizer.model_copy(update={"padding_side": side, "pad_token_id": 9})
    graphs = {**described.graphs, "text": graph}
    model = served(described.model_copy(update={"graphs": graphs, "tokenizer": spec}))
    rows, calls = TextRows(model), []
    rows.add(text(3, 4))
    rows.batch(model.part(takes=Role.TOKENS, returns=Role.EMBEDDING), (Role.EMBEDDING,), calls)
    if width == "T":  # padding is masked
        assert values(calls, "token_ids") == [[[3, 4, *[9] * 6]]]
    else:
        wanted = [9, 9, 9, 3, 4] if side == "left" else [3, 4, 9, 9, 9]
        assert values(calls, "token_ids") == [[wanted]]
