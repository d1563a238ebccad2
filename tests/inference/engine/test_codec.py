"""Options over a checkpoint's defaults; requests, responses and errors survive the codec."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from inference.engine import codec
from inference.engine.codec import (
    decode_chunk,
    decode_finished,
    decode_request,
    encode_chunks,
    encode_finished,
    encode_request,
)
from inference.errors import InternalError, InvalidRequest
from inference.generation import Finished, Generation, Hypothesis, Overrides, TokenChunk

DEFAULTS = Generation(
    decoder_start_ids=(0,), eos_token_ids=(1,), pad_token_id=0, max_new_tokens=30, num_beams=2
)
FINISHED = Finished((Hypothesis((5, 6, 1), -0.5, "stop"), Hypothesis((5,), -0.75, "length")), 4)


def options(**fields: object) -> np.ndarray:
    return np.array([json.dumps(fields).encode()], np.object_)


def test_options_override_the_defaults() -> None:
    tensors = {
        codec.SOURCE_IDS: np.array([3, 4]),
        codec.PROMPT_IDS: np.array([7]),
        codec.OPTIONS: options(num_beams=3, max_new_tokens=99, stream=True, deadline_ms=1000),
    }
    request = decode_request(tensors, DEFAULTS)
    assert request.rules == DEFAULTS.model_copy(update={"num_beams": 3, "max_new_tokens": 99})
    assert request.decoder_ids == (0, 7)
    assert request.stream
    assert request.deadline_s is not None


def test_request_copies_tritons_memory() -> None:
    source = np.array([3, 4])
    request = decode_request({codec.SOURCE_IDS: source}, DEFAULTS)
    source[:] = 0
    assert request.source_ids.tolist() == [3, 4]


@pytest.mark.parametrize("text", [b"{", b'{"num_beams": 0}', b'{"temperature": 0}', b"\xff"])
def test_bad_options_are_an_invalid_request(text: bytes) -> None:
    with pytest.raises(InvalidRequest):
        decode_request({codec.OPTIONS: np.array([text], np.object_)}, DEFAULTS)


def test_sequences_are_padded_with_no_token() -> None:
    arrays = encode_finished(FINISHED, [TokenChunk((1,))])
    assert arrays[codec.SEQUENCES].tolist() == [[5, 6, 1], [5, -1, -1]]
    assert arrays[codec.SCORES].tolist() == [-0.5, -0.75]
    assert arrays[codec.FINISH_REASON].tolist() == [b"stop", b"length"]
    assert arrays[codec.USAGE].tolist() == [4, 4]
    assert arrays[codec.TOKEN_IDS].tolist() == [1]


def test_log_probabilities_are_encoded_when_requested() -> None:
    long = Hypothesis((5, 1), -1.0, "stop", (-0.5, -0.25), (((5, -0.5), (6, -0.75)), ((1, -0.25),)))
    short = Hypothesis((7,), -2.0, "length", (-2.0,), (((5, -0.5), (7, -2.0)),))
    arrays = encode_finished(Finished((long, short), 3), [])
    assert arrays[codec.LOG_PROBS].tolist() == [[-0.5, -0.25], [-2.0, 0.0]]
    assert arrays[codec.TOP_IDS].tolist() == [[[5, 6], [1, -1]], [[5, 7], [-1, -1]]]
    assert arrays[codec.TOP_LOG_PROBS].tolist() == [
        [[-0.5, -0.75], [-0.25, 0]], [[-0.5, -2.0], [0, 0]],
    ]  # fmt: skip
    chunks = [
        TokenChunk((5,), (-0.5,), (((5, -0.5),),)),
        TokenChunk((1,), (-0.25,), (((1, -0.25),),)),
    ]
    together = encode_chunks(chunks)
    assert together[codec.TOKEN_IDS].tolist() == [5, 1]
    assert together[codec.LOG_PROBS].tolist() == [[-0.5, -0.25]]
    assert together[codec.TOP_IDS].tolist() == [[[5], [1]]]


def test_log_probs_without_best_tokens_have_no_top() -> None:
    arrays = encode_chunks([TokenChunk((5,), (-0.5,), ((),))])
    assert set(arrays) == {codec.TOKEN_IDS, codec.LOG_PROBS}


def test_alignments_are_padded_with_zeros() -> None:
    long = Hypothesis((5, 1), -1.0, "stop", alignment=np.full((2, 3), 0.5, np.float32))
    short = Hypothesis((7,), -2.0, "length", alignment=np.full((1, 3), 0.25, np.float32))
    arrays = encode_finished(Finished((long, short), 3), [])
    half, quarter = [0.5] * 3, [0.25] * 3
    assert arrays[codec.ALIGNMENT].tolist() == [[half, half], [quarter, [0.0] * 3]]


def test_outputs_not_requested_are_absent() -> None:
    optional = {codec.LOG_PROBS, codec.TOP_IDS, codec.TOP_LOG_PROBS, codec.ALIGNMENT}
    assert not optional & set(encode_finished(FINISHED, []))


values = st.floats(-50, 0, width=32)
positions = st.tuples(
    st.integers(0, 99),
    values,
    st.lists(st.tuples(st.integers(0, 99), values), min_size=1, max_size=3).map(tuple),
)


@st.composite
def hypotheses(draw: st.DrawFn) -> list[Hypothesis]:
    """Hypotheses that all have, or all lack, log-probabilities, best tokens and alignments."""
    has_log_probs = draw(st.booleans())
    has_top = has_log_probs and draw(st.booleans())
    sources = draw(st.sampled_from([0, 3]))
    found = []
    for path in draw(st.lists(st.lists(positions, min_size=1, max_size=4), min_size=1, max_size=3)):
        ids, log_probs, top = zip(*path, strict=True)
        alignment = np.full((len(ids), sources), draw(values), np.float32) if sources else None
        found.append(
            Hypothesis(
                ids,
                draw(values),
                draw(st.sampled_from(["stop", "length"])),
                log_probs if has_log_probs else (),
                top if has_top else (),
                alignment,
            )
        )
    return found


def plain(hypothesis: Hypothesis) -> tuple[object, ...]:
    alignment = hypothesis.alignment
    fields = {name: value for name, value in vars(hypothesis).items() if name != "alignment"}
    return (*fields.values(), None if alignment is None else alignment.tolist())


@given(found=hypotheses(), prompt_tokens=st.integers(0, 9))
def test_finished_survives_the_codec(found: list[Hypothesis], prompt_tokens: int) -> None:
    finished = Finished(tuple(found), prompt_tokens)
    decoded = decode_finished(encode_finished(finished, []))
    assert decoded.prompt_tokens == prompt_tokens
    assert list(map(plain, decoded.hypotheses)) == list(map(plain, found))


@given(found=hypotheses(), data=st.data())
def test_chunks_survive_the_codec(found: list[Hypothesis], data: st.DataObject) -> None:
    one = found[0]
    cut = data.draw(st.integers(0, len(one.token_ids) - 1))
    chunk = TokenChunk(one.token_ids[cut:], one.log_probs[cut:], one.top[cut:])
    decoded = decode_chunk(encode_chunks([chunk]))
    assert (decoded, decoded.is_last) == (chunk, False)
    decoded = decode_chunk(encode_finished(Finished((one,), 0), [chunk]))
    assert (decoded, decoded.is_last) == (chunk, True)


def test_request_survives_the_codec() -> None:
    tensors = encode_request({codec.SOURCE_IDS: np.array([3])}, Overrides(num_beams=3, priority=2))
    request = decode_request(tensors, DEFAULTS)
    assert (request.rules.num_beams, request.priority, request.source_length) == (3, 2, 1)


def test_response_without_its_outputs_is_an_internal_error() -> None:
    with pytest.raises(InternalError, match="no output sequences"):
        decode_finished({})


RULES = Generation(pad_token_id=0, max_new_tokens=20, num_beams=4, eos_token_ids=(1,))


def test_a_request_may_be_longer_than_the_default() -> None:
    for requested in (5, 500):
        assert RULES.with_overrides(Overrides(max_new_tokens=requested)).max_new_tokens == requested


def test_more_hypotheses_than_beams_are_refused() -> None:
    with pytest.raises(ValidationError, match="num_return_sequences"):
        RULES.with_overrides(Overrides(num_return_sequences=5))


def test_sampling_and_beams_replace_each_other() -> None:
    sampling = RULES.with_overrides(Overrides(do_sample=True, num_return_sequences=3))
    assert (sampling.num_beams, sampling.rows) == (1, 3)
    assert not sampling.with_overrides(Overrides(num_beams=2, num_return_sequences=1)).do_sample
    with pytest.raises(ValidationError, match="mutually exclusive"):
        RULES.with_overrides(Overrides(do_sample=True, num_beams=2))


@pytest.mark.parametrize("length_penalty", [float("nan"), float("inf"), 11.0])
def test_length_penalty_must_be_a_number_in_range(length_penalty: float) -> None:
    with pytest.raises(ValidationError, match="length_penalty"):
        Overrides(length_penalty=length_penalty)


def test_unknown_option_is_refused_by_name() -> None:
    with pytest.raises(ValidationError, match="temprature"):
        Overrides.model_validate({"temprature": 1})
