"""Which fields sample, which exclude each other, and what reaches the engine."""

from dataclasses import replace

import pytest

from inference.errors import InvalidRequest
from inference.generation import Generation, Overrides
from inference.tasks.generation.overrides import sampling_overrides
from inference.tasks.shared.loaded_model import TaskLimits
from tests.inference.tiny_models import WordTokenizer, manifest, served
from triptych.tasks.generate import GenerateRequest

GREEDY = Generation(pad_token_id=0, max_new_tokens=20)
BEAMS = Generation(pad_token_id=0, max_new_tokens=20, num_beams=4)
SAMPLED = Generation(pad_token_id=0, max_new_tokens=20, do_sample=True, temperature=0.7)


def asked(
    defaults: Generation = GREEDY, stops: tuple[str, ...] = (), **fields: object
) -> Overrides:
    model = served(manifest("generate", generation=defaults, vocabulary_size=100), WordTokenizer())
    model = replace(model, task_limits=TaskLimits(max_best_of=5, max_stop_sequences=2))
    request = GenerateRequest(prompts=["a"], **fields)
    stops = tuple(request.stop or stops)
    made = sampling_overrides(request, model, stops=stops, logprobs=request.logprobs)
    defaults.with_overrides(made)  # what the engine will do with it
    return made


@pytest.mark.parametrize(
    "field", ["temperature", "top_k", "top_p", "min_p", "typical_p", "seed", "best_of"]
)
def test_a_field_of_sampling_samples(field: str) -> None:
    made = asked(**{field: 1})
    assert made.do_sample
    assert getattr(made, field) == 1
    assert made.num_beams == 1


def test_temperature_0_takes_the_best_token() -> None:
    for defaults in (GREEDY, SAMPLED):
        made = asked(defaults, temperature=0, top_p=0.5, seed=1)
        assert made.do_sample is False
        assert made.temperature is made.top_p is None


def test_without_fields_the_checkpoint_decides() -> None:
    assert asked().do_sample is False
    assert asked(SAMPLED).do_sample is True
    assert asked(SAMPLED).temperature is None
    assert asked(BEAMS).num_beams == 4


def test_beams_do_not_sample() -> None:
    made = asked(SAMPLED, num_beams=3, n=2, length_penalty=0.5, early_stopping=True)
    assert (made.do_sample, made.num_beams, made.num_return_sequences) == (False, 3, 2)
    assert (made.length_penalty, made.early_stopping) == (0.5, True)


def test_several_answers_are_samples_where_there_are_no_beams() -> None:
    made = asked(n=3)
    assert (made.do_sample, made.num_return_sequences, made.num_beams) == (True, 3, 1)
    made = asked(BEAMS, n=5)
    assert (made.do_sample, made.num_return_sequences, made.num_beams) == (False, 5, 5)


def test_sampling_takes_the_place_of_default_beams() -> None:
    made = asked(BEAMS, temperature=0.5)
    assert (made.do_sample, made.num_beams) == (True, 1)


def test_the_rest_reaches_the_engine() -> None:
    fields = {
        "max_new_tokens": 5, "no_repeat_ngram_size": 2, "repetition_penalty": 1.5,
        "presence_penalty": 0.5, "frequency_penalty": -0.5, "logit_bias": {99: -5.0},
    }  # fmt: skip
    made = asked(**fields)
    assert {name: getattr(made, name) for name in fields} == fields
    assert made.do_sample is False


def test_a_stream_is_greedy_where_beams_are_the_default() -> None:
    made = asked(BEAMS, stream=True)
    assert (made.num_beams, made.do_sample) == (1, False)
    assert asked(BEAMS, stream=True, temperature=0.5).do_sample is True
    assert asked(SAMPLED, stream=True).do_sample is True


def test_log_probabilities_are_requested_where_they_are_needed() -> None:
    assert asked().top_log_probs is None
    assert asked(logprobs=0).top_log_probs == 0
    assert asked(logprobs=3, stops=("x",)).top_log_probs == 3
    assert asked(stops=("x",)).top_log_probs == 0
    assert asked(stops=("x",), stream=True).top_log_probs is None  # pieces have no score
    assert asked(stops=("x",), stream=True, logprobs=0).top_log_probs == 0


@pytest.mark.parametrize(
    ("defaults", "fields", "field", "message"),
    [
        (GREEDY, {"num_beams": 2, "top_p": 0.5}, "num_beams", "top_p samples"),
        (GREEDY, {"temperature": 0, "n": 2}, "n", "n is 2, but num_beams is 1"),
        (GREEDY, {"num_beams": 2, "n": 3}, "n", "n is 3, but num_beams is 2"),
        (GREEDY, {"best_of": 2, "n": 3}, "n", "n is 3, but best_of is 2"),
        (GREEDY, {"best_of": 2, "temperature": 0}, "best_of", "temperature is 0"),
        (GREEDY, {"n": 6}, "n", "n is 6, at most 5"),
        (GREEDY, {"best_of": 6}, "best_of", "best_of is 6, at most 5"),
        (GREEDY, {"stop": ["a", "b", "c"]}, "stop", "stop holds 3 strings, at most 2"),
        (GREEDY, {"logit_bias": {100: 1.0}}, "logit_bias", "token 100, .* 0 to 99"),
        (GREEDY, {"stream": True, "n": 2}, "n", "a stream carries one output"),
        (GREEDY, {"stream": True, "best_of": 2}, "best_of", "a stream carries one output"),
        (GREEDY, {"stream": True, "num_beams": 2}, "num_beams", "set num_beams to 1"),
        (BEAMS, {"stream": True, "n": 2}, "n", "a stream carries one output"),
    ],
)  # fmt: skip
def test_mutually_exclusive_fields_are_refused_by_name(
    defaults: Generation, fields: dict, field: str, message: str
) -> None:
    with pytest.raises(InvalidRequest, match=message) as caught:
        asked(defaults, **fields)
    assert caught.value.field == field
