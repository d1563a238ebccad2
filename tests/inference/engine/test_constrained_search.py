"""Required phrases against an exhaustive search; choices, expressions and schemas."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import re
from collections import Counter
from pathlib import Path
from typing import Any

import jsonschema_rs
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import ValidationError

from inference.bundle.manifest import Bundle
from inference.engine.engine import decode
from inference.engine.request import EngineRequest, RequestValidator
from inference.engine.scheduler import Capacity
from inference.engine.search.constrained_beam import (
    ConstrainedBeamSearch,
    PhraseTracker,
    allocate_places,
)
from inference.engine.sequence import SequenceState
from inference.errors import InvalidRequest, Overloaded
from inference.generation import Generation, Hypothesis, Overrides
from inference.processing.grammars import GrammarCompiler, GrammarSource
from inference.processing.terms import WordEdges
from inference.processing.tokenizer_kinds import FastTokenizer
from tests.inference.engine.fake_runner import FakeRunner, hashed_logits
from tests.inference.processing.tokenizer_files import trained
from tests.inference.tiny_models import manifest

END, VOCABULARY, LONGEST = 1, 6, 5
NO_EDGES = WordEdges.none(VOCABULARY)
# Token 4 continues a word, tokens 2 and 4 may be continued.
EDGES = WordEdges(
    np.array([False, False, False, False, True, False]),
    np.array([False, False, True, False, True, False]),
)
Phrases = tuple[tuple[tuple[int, ...], ...], ...]


def rules(phrases: Phrases, **changed: Any) -> Generation:
    plain = Generation(
        pad_token_id=0, eos_token_ids=(END,), decoder_start_ids=(0,), max_new_tokens=LONGEST
    )
    defaults = {"num_beams": 4, "suppress_tokens": (0,), "length_penalty": 0.0}
    return plain.model_copy(update={**defaults, "force_words_ids": phrases, **changed})


def searched(
    phrases: Phrases, source: int = 3, edges: WordEdges = NO_EDGES, **changed: Any
) -> tuple[Hypothesis, ...]:
    runner = FakeRunner(hashed_logits(VOCABULARY, end_bias=1.0), VOCABULARY)
    request = EngineRequest(
        rules(phrases, **changed), source_ids=np.array([source]), word_edges=edges
    )
    return decode(runner, [request], Capacity(rows=400))[0].hypotheses


def contains(tokens: tuple[int, ...], phrases: Phrases, edges: WordEdges) -> bool:
    """From left to right, the longest phrase that is missing, whole words alone.

    Of phrases that share a spelling, the one that was required last.
    """
    missing = Counter(phrases)
    order = list(missing)
    place = 0
    while place < len(tokens):
        found = [
            (len(spelling), order.index(phrase), phrase)
            for phrase, count in missing.items()
            for spelling in phrase
            if count
            and tokens[place : place + len(spelling)] == spelling
            and not joins(tokens, place, edges)
            and not joins(tokens, place + len(spelling), edges)
        ]
        length, _, phrase = max(found, default=(1, 0, None))
        if phrase is not None:
            missing[phrase] -= 1
        place += length
    return not missing.total()


def joins(tokens: tuple[int, ...], place: int, edges: WordEdges) -> bool:
    return 0 < place < len(tokens) and bool(
        edges.ends[tokens[place - 1]] and edges.begins[tokens[place]]
    )


def best(phrases: Phrases, source: int, edges: WordEdges) -> tuple[tuple[int, ...], float]:
    """Of all outputs of at most `LONGEST` tokens."""
    logits = hashed_logits(VOCABULARY, end_bias=1.0)

    def score(output: tuple[int, ...]) -> float:
        total = 0.0
        for length, token in enumerate(output):
            values = logits((source,), (0, *output[:length])).astype(np.float64)
            total += values[token] - np.logaddexp.reduce(values)
        return total

    outputs = [
        output
        for length in range(1, LONGEST + 1)
        for inner in itertools.product((2, 3, 4, 5), repeat=length - 1)
        for output in (
            [(*inner, END)] + [(*inner, token) for token in (2, 3, 4, 5) if length == LONGEST]
        )
        if contains(output, phrases, edges)
    ]
    return max(((output, score(output)) for output in outputs), key=lambda found: found[1])


REQUIRED: dict[str, Phrases] = {
    "one token": (((2,),),),
    "one of two spellings": (((2, 3), (5,)),),
    "two phrases": (((2, 3),), ((4,),)),
    "repeated": (((2,),), ((2,),)),
    "a shared prefix": (((2, 3),), ((2, 4),)),
    "one contains the other": (((2,),), ((2, 3),)),
    "one contains the other twice": (((2,),), ((2, 2, 3),)),
    "all places": (((2, 3, 2, 5, 5),),),
}


@pytest.mark.parametrize("edges", [NO_EDGES, EDGES], ids=["tokens", "words"])
@pytest.mark.parametrize("name", REQUIRED)
def test_a_beam_that_is_wide_enough_finds_the_best_of_all_outputs(
    name: str, edges: WordEdges
) -> None:
    for source in range(4):
        found = searched(REQUIRED[name], source, edges, num_beams=400)[0]
        output, score = best(REQUIRED[name], source, edges)
        assert found.token_ids == output
        assert found.score == pytest.approx(score, abs=1e-4)


@pytest.mark.parametrize("width", [2, 3, 5])
@pytest.mark.parametrize("name", REQUIRED)
def test_narrow_beams_contain_the_phrases_too(name: str, width: int) -> None:
    for source in range(6):
        found = searched(REQUIRED[name], source, EDGES, num_beams=width, num_return_sequences=width)
        assert found
        for one in found:
            assert contains(one.token_ids, REQUIRED[name], EDGES)
        assert [one.score for one in found] == sorted((one.score for one in found), reverse=True)


phrase = st.lists(
    st.lists(st.integers(2, 5), min_size=1, max_size=3).map(tuple), min_size=1, max_size=2
).map(tuple)


@given(
    st.lists(phrase, min_size=1, max_size=4).map(tuple),
    st.lists(st.integers(2, 5), max_size=9).map(tuple),
)
@example((((2,),), ((3, 3), (2,)), ((3, 3),)), (3, 3, 2, 2))
def test_states_agree_with_the_whole_text(phrases: Phrases, tokens: tuple[int, ...]) -> None:
    tracker = PhraseTracker(phrases, EDGES)
    state = tracker.start
    for place in range(len(tokens) + 1):
        assert (tracker.remaining(state) == 0) == contains(tokens[:place], phrases, EDGES)
        if place < len(tokens):
            state = tracker.follow(state, tokens[place])


@given(
    st.lists(phrase.map(lambda one: one[:1]), min_size=1, max_size=4).map(tuple),
    st.lists(st.integers(2, 5), max_size=6).map(tuple),
)
def test_next_tokens_lead_to_all_phrases_in_the_least_number_of_steps(
    phrases: Phrases, tokens: tuple[int, ...]
) -> None:
    tracker = PhraseTracker(phrases, NO_EDGES)
    state = tracker.start
    for token in tokens:
        state = tracker.follow(state, token)
    for left in range(tracker.remaining(state), 0, -1):
        state = min(
            (tracker.follow(state, token) for token in tracker.next_tokens(state)),
            key=tracker.remaining,
        )
        assert tracker.remaining(state) <= left - 1


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"length_penalty": 1.0},
        {"forced_eos_token_id": END},
        {"bad_words_ids": ((3,),)},
        {"renormalize_logits": True, "bad_words_ids": ((3,),)},
        {"repetition_penalty": 1.4, "early_stopping": True},
        {"top_log_probs": 2},
    ],
)
def test_without_a_phrase_it_is_the_plain_beam_search(
    changed: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = [searched((), source, num_return_sequences=4, **changed) for source in range(5)]
    monkeypatch.setattr("inference.engine.sequence.BeamSearch", ConstrainedBeamSearch)
    found = [searched((), source, num_return_sequences=4, **changed) for source in range(5)]
    assert [[one.token_ids for one in each] for each in found] == [
        [one.token_ids for one in each] for each in wanted
    ]
    for each, plain in zip(found, wanted, strict=True):
        assert [one.score for one in each] == pytest.approx([one.score for one in plain], abs=1e-6)
        assert [one.top for one in each] == [one.top for one in plain]


def test_requests_with_phrases_share_a_batch_with_others() -> None:
    runner = FakeRunner(hashed_logits(VOCABULARY, end_bias=1.0), VOCABULARY)
    sets: list[Phrases] = [(), *REQUIRED.values(), ()]
    requests = [
        EngineRequest(rules(phrases, num_beams=4), source_ids=np.array([9]), word_edges=EDGES)
        for phrases in sets
    ]
    together = [one.hypotheses for one in decode(runner, requests)]
    assert together == [searched(phrases, 9, EDGES, num_beams=4) for phrases in sets]


def test_log_probabilities_sum_up_to_the_score() -> None:
    for source in range(5):
        (found,) = searched((((2, 3),), ((4,),)), source, top_log_probs=2)
        assert math.fsum(found.log_probs) == pytest.approx(found.score, abs=1e-4)


def test_phrases_that_do_not_fit_are_refused_at_once() -> None:
    request = EngineRequest(rules((((2, 3, 4),), ((5, 5, 5),))), source_ids=np.array([1]))
    with pytest.raises(InvalidRequest, match="take 6 tokens or more, the output has at most 5"):
        SequenceState(request, lambda event: None)


def test_a_forced_end_token_takes_a_place() -> None:
    phrases = (((2, 3, 4, 5, 2),),)
    assert searched(phrases, num_beams=2)[0].token_ids == (2, 3, 4, 5, 2)
    with pytest.raises(InvalidRequest, match="at most 4"):
        searched(phrases, num_beams=2, forced_eos_token_id=END)


def test_a_phrase_of_banned_tokens_has_an_error() -> None:
    with pytest.raises(InvalidRequest, match="no output of at most 5 tokens"):
        searched((((2, 3),),), bad_words_ids=((3,),))


@given(st.lists(st.integers(0, 5), max_size=40), st.integers(1, 8))
def test_beams_are_divided_among_banks(banks: list[int], width: int) -> None:
    kept = allocate_places(banks, width)
    assert kept == sorted(set(kept))
    assert len(kept) == min(width, len(banks))
    # Of each bank the best, and none is without while another could spare one.
    counts = Counter(banks[place] for place in kept)
    for bank, count in counts.items():
        assert [p for p in kept if banks[p] == bank] == [
            p for p, b in enumerate(banks) if b == bank
        ][:count]
    if len(set(banks)) <= width:
        assert set(counts) == set(banks)


MODEL_END = 3
ASCII = "".join(map(chr, range(33, 127))) + "\néà☃"
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 9},
        "count": {"type": "integer", "minimum": -5, "maximum": 500},
        "kind": {"enum": ["café", 'a "b"', "x/y"]},
        "tags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3},
    },
    "required": ["name", "kind"],
    "additionalProperties": False,
}


class Model:
    """A tokenizer with random scores, and the bundle that they are of."""

    def __init__(self, kind: str, folder: Path, alphabet: str = ASCII) -> None:
        self.tokenizer: FastTokenizer = trained(kind, folder)[0]
        if kind == "unigram":
            self._add(folder / "tokenizer.json", alphabet)
        size = self.tokenizer._tokenizer.get_vocab_size() + 7  # more scores than tokens
        spec = manifest("generate").tokenizer
        fields: dict[str, Any] = {
            "tokenizer": spec.model_copy(update={"files": {"tokenizer": "tokenizer.json"}}),
            "vocabulary_size": size,
            "generation": Generation(pad_token_id=0, eos_token_ids=(MODEL_END,), max_new_tokens=90),
            "limits": manifest("generate").limits.model_copy(update={"max_total_tokens": None}),
        }
        self.bundle = Bundle(folder, manifest("generate", **fields))
        self.runner = FakeRunner(hashed_logits(size), size)
        self.compiler = GrammarCompiler(self.bundle)
        self.validator = RequestValidator(self.bundle.manifest, None, self.compiler.compile_rules)

    def _add(self, file: Path, alphabet: str) -> None:
        """Adds characters that the training texts lack, as pieces of their own."""
        content = json.loads(file.read_text())
        known = {piece for piece, _ in content["model"]["vocab"]}
        content["model"]["vocab"] += [[one, -12.0] for one in alphabet if one not in known]
        file.write_text(json.dumps(content))
        spec = manifest("generate").tokenizer
        files = {"tokenizer": file.name}
        self.tokenizer = FastTokenizer(spec.model_copy(update={"files": files}), file.parent)

    def request(self, prompt: int, **rules: object) -> EngineRequest:
        merged = self.bundle.manifest.generation.with_overrides(Overrides.model_validate(rules))
        return self.validator.validate(EngineRequest(merged, prompt_ids=(10 + prompt,)))

    def outputs(self, count: int = 6, **rules: object) -> list[Hypothesis]:
        requests = [self.request(prompt, **rules) for prompt in range(count)]
        return [one for answer in decode(self.runner, requests) for one in answer.hypotheses]

    def text(self, output: Hypothesis) -> str:
        return self.tokenizer.decode(output.token_ids)


@pytest.fixture(scope="module", params=["bytes", "unigram"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    return Model(request.param, tmp_path_factory.mktemp("tokenizer"))


SEARCHES: dict[str, dict[str, object]] = {
    "greedy": {},
    "sampled": {"do_sample": True, "seed": 3},
    "hot": {"do_sample": True, "temperature": 3.0, "num_return_sequences": 3, "seed": 1},
    "truncated": {"do_sample": True, "top_k": 5, "top_p": 0.7, "seed": 2},
    "typical": {"do_sample": True, "typical_p": 0.5, "seed": 2},
    "penalised": {"repetition_penalty": 1.3, "logit_bias": {40: 3.0}, "frequency_penalty": 0.2},
    "best of": {"do_sample": True, "best_of": 3, "seed": 5},
}


@pytest.mark.parametrize("search", SEARCHES)
def test_outputs_are_valid_under_a_schema(model: Model, search: str) -> None:
    outputs = model.outputs(json_schema=json.dumps(SCHEMA), **SEARCHES[search])
    finished = [one for one in outputs if one.finish_reason == "stop"]
    assert finished
    for one in finished:
        assert jsonschema_rs.is_valid(SCHEMA, json.loads(model.text(one)))
    for one in outputs:
        if one.finish_reason == "length":
            assert len(one.token_ids) == 90


@pytest.mark.parametrize("search", SEARCHES)
def test_outputs_are_one_of_the_choices(model: Model, search: str) -> None:
    choices = ("Ada", "Ada Lovelace", "no", "l'été à Genève", 'a "quote"\n', "1/2")
    for one in model.outputs(choices=choices, **SEARCHES[search]):
        assert one.finish_reason == "stop"
        assert model.text(one) in choices


@pytest.mark.parametrize(
    "regex",
    [r"\d{3}-\d{4}", "[a-z ]{4,9}[.!]", r"(red|blue)( (circle|square))?", r"a/b\/[/x]", "é+"],
)
def test_outputs_match_an_expression(model: Model, regex: str) -> None:
    outputs = model.outputs(regex=regex, do_sample=True, seed=4)
    assert any(one.finish_reason == "stop" for one in outputs)
    for one in outputs:
        if one.finish_reason == "stop":
            assert re.fullmatch(regex, model.text(one))


@pytest.mark.parametrize("limit", range(1, 12))
def test_at_the_limit_an_output_is_whole_or_says_length(model: Model, limit: int) -> None:
    for one in model.outputs(regex="a{0,3}b?c{2,8}", max_new_tokens=limit, do_sample=True, seed=9):
        matches = re.fullmatch("a{0,3}b?c{2,8}", model.text(one)) is not None
        assert (one.finish_reason == "stop") == matches
        assert len(one.token_ids) <= limit


def test_an_output_that_nothing_can_follow_ends_at_once(model: Model) -> None:
    for one in model.outputs(choices=("no",)):
        assert MODEL_END not in one.token_ids


def test_rows_without_a_structure_are_not_changed(model: Model) -> None:
    plain = {"max_new_tokens": 12}
    alone = [decode(model.runner, [model.request(n, **plain)])[0] for n in range(4)]
    structured = [model.request(n, choices=("Ada", "no")) for n in range(4)]
    sampled = [model.request(n, regex="[a-z]{9}", do_sample=True, seed=n) for n in range(4)]
    together = decode(
        model.runner, [*(model.request(n, **plain) for n in range(4)), *structured, *sampled]
    )
    assert together[:4] == alone
    assert together[8:] == [decode(model.runner, [one])[0] for one in sampled]


def test_log_probabilities_are_of_what_is_allowed(model: Model) -> None:
    for one in model.outputs(regex="[ab]", top_log_probs=5):
        first = one.top[0]
        assert {model.text(Hypothesis((token,), 0, "")) for token, _ in first} <= {"a", "b", ""}
        assert sum(np.exp(value) for _, value in first) == pytest.approx(1, abs=1e-4)


def test_samples_follow_their_scores(model: Model) -> None:
    """Over many seeds the share of a choice is its probability among all of them."""
    rules: dict[str, object] = {"regex": "[ab]", "do_sample": True}
    first = model.outputs(1, **rules, seed=0, top_log_probs=5)[0]
    shares = {token: float(np.exp(value)) for token, value in first.top[0]}
    drawn = [model.outputs(1, **rules, seed=seed)[0].token_ids[0] for seed in range(400)]
    for token, share in shares.items():
        assert drawn.count(token) / 400 == pytest.approx(share, abs=0.1)


def test_equal_grammars_are_compiled_once(model: Model) -> None:
    first = model.request(0, regex="[a-d]+").grammar
    assert model.request(1, regex="[a-d]+").grammar is first
    assert model.request(1, regex="[a-e]+").grammar is not first


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({"regex": "("}, "regex is refused: "),
        ({"regex": "(?=x)a"}, "regex is refused: "),
        ({"regex": r"[^\x00-\U0010FFFF]"}, "no output can match it"),
        ({"json_schema": "{"}, "json_schema is refused: "),
        ({"json_schema": '"text"'}, "schema must be an object or boolean"),
        ({"json_schema": "false"}, "Unsatisfiable"),
        ({"json_schema": '{"$ref": "http://example.com/x"}'}, "refused"),
        ({"json_schema": '{"$ref": "#"}'}, "no output can match it"),
        ({"json_schema": '{"not": {}}'}, "Unimplemented"),
        ({"json_schema": "[" * 60_000}, "nested too deeply"),
        ({"json_schema": '{"items":' * 3000 + "{}" + "}" * 3000}, "recursion limit|nested"),
        ({"json_schema": '{"x-guidance": {"lenient": true}, "not": {}}'}, "Unimplemented"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_cannot_be_compiled_is_refused_in_one_line(
    model: Model, rules: dict[str, object], message: str
) -> None:
    with pytest.raises(InvalidRequest, match=message) as caught:
        model.outputs(1, **rules)
    assert "\n" not in caught.value.message
    assert len(caught.value.message) < 260


@pytest.mark.parametrize(
    "rules",
    [
        {"regex": "(((((a{9}){9}){9}){9}){9})"},
        {"regex": "(.*a){60}"},
        {"regex": "(a|aa)+(b|bb)+c{1,3000}"},
        {"regex": r"(\p{L}{1,200}x){1,200}"},
        {"regex": "(x+x+)+y"},
        {"json_schema": json.dumps({"enum": [f"{n}" * 9 for n in range(1000)]})},
        {"json_schema": json.dumps({"anyOf": [{"pattern": f"(a{n}.*){{3}}"} for n in range(99)]})},
    ],
    ids=lambda value: str(value)[:40],
)
def test_hostile_ones_are_answered_or_refused(model: Model, rules: dict[str, object]) -> None:
    """By counts of work: llguidance bounds what is compiled and each step."""
    with contextlib.suppress(InvalidRequest):
        assert len(model.outputs(2, **rules, do_sample=True, seed=1, max_new_tokens=20)) == 2


def test_what_takes_too_long_is_refused_and_others_are_compiled_after_it(model: Model) -> None:
    """Patterns that must all match take exponentially long in their number."""
    schema = {"type": "string", "allOf": [{"pattern": f".*{one}.*"} for one in "abcdefghijklmno"]}
    compiler = GrammarCompiler(model.bundle, limit_s=0.05)
    slow = GrammarSource(json_schema=json.dumps(schema))
    compiler.compile(GrammarSource(regex="a"))
    with pytest.raises(
        InvalidRequest, match=r"json_schema is refused: it takes longer than 0.05 s"
    ):
        compiler.compile(slow)
    with pytest.raises(Overloaded, match="another grammar is still being compiled"):
        compiler.compile(GrammarSource(regex="b"))
    assert compiler.compile(GrammarSource(regex="a"))
    compiler._late.join()
    assert compiler.compile(GrammarSource(regex="b"))


def test_beams_and_several_structures_are_refused() -> None:
    plain = Generation(pad_token_id=0, max_new_tokens=5)
    with pytest.raises(ValidationError, match="exclude beams"):
        plain.with_overrides(Overrides(regex="a", num_beams=2))
    with pytest.raises(ValidationError, match="exclude each other"):
        Overrides(regex="a", choices=["b"])


def test_a_model_without_such_a_tokenizer_refuses_by_name(model: Model, tmp_path: Path) -> None:
    spec = model.bundle.manifest.tokenizer
    assert spec is not None
    trained("word pieces", tmp_path)
    for folder, other in ((model.bundle.folder, None), (tmp_path, spec)):
        changed = model.bundle.manifest.model_copy(update={"tokenizer": other})
        compiler = GrammarCompiler(Bundle(folder, changed))
        rules = model.bundle.manifest.generation.with_overrides(Overrides(choices=["a"]))
        with pytest.raises(InvalidRequest, match="tiny-generate takes no choices"):
            compiler.compile_rules(rules)


@pytest.mark.parametrize(
    "rules", [{"choices": ["red", "{}"]}, {"regex": r"\{\}"}, {"json_schema": '{"type": "object"}'}]
)
def test_what_the_vocabulary_cannot_write_is_an_error(
    rules: dict[str, object], tmp_path: Path
) -> None:
    """As T5's, which has no braces."""
    without = Model("unigram", tmp_path, alphabet="")
    with pytest.raises(InvalidRequest, match=r"the model's vocabulary cannot write '\{"):
        without.outputs(**rules)


@pytest.mark.parametrize("search", ["greedy", "sampled", "penalised"])
def test_a_lost_output_goes_on_within_its_grammar(model: Model, search: str) -> None:
    rules: dict[str, object] = {"json_schema": json.dumps(SCHEMA), **SEARCHES[search]}
    (whole,) = model.outputs(count=1, **rules)
    for cut in {1, 2, len(whole.token_ids) // 2, len(whole.token_ids)}:
        (rest,) = model.outputs(count=1, **rules, generated_ids=whole.token_ids[:cut])
        assert rest.token_ids == whole.token_ids[cut:]
        assert rest.finish_reason == whole.finish_reason


@pytest.mark.parametrize("kind", ["bytes", "unigram"])
def test_tokens_that_the_model_does_not_score_are_in_no_grammar(kind: str, tmp_path: Path) -> None:
    """A tokenizer's last tokens, as those that were added to it later."""
    model = Model(kind, tmp_path)
    path = tmp_path / "tokenizer.json"
    last = model.tokenizer._tokenizer.get_vocab_size()
    made = json.loads(path.read_text())
    names = ("plainnew", "othernew")
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    made["added_tokens"] += [
        {"id": last + place, "content": name, **plain} for place, name in enumerate(names)
    ]
    path.write_text(json.dumps(made))
    manifest = model.bundle.manifest.model_copy(update={"vocabulary_size": last})
    compiler = GrammarCompiler(Bundle(tmp_path, manifest))
    for source in (GrammarSource(choices=names), GrammarSource(regex="plain[a-z]+")):
        state = compiler.compile(source).start()
        banned = state.find_banned()
        assert banned.max() < last
        free = sorted(set(range(last)) - set(banned.tolist()))
        assert free
        state.take(free[0])
