"""Chunks of a request, together, are the whole answer."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.errors import Overloaded, ServingError, Unavailable
from inference.generation import TokenChunk
from inference.processing.detokenizer import LeadingSpace, Stripping
from inference.processing.tokenizer_kinds import FastTokenizer
from inference.tasks import caption, generate, translate
from inference.tasks.shared.incremental_text import IncrementalText
from inference.tasks.shared.loaded_model import LoadedModel
from inference.tasks.shared.streaming import Streaming
from serving.gateway.requests.chunk_stream import merge
from tests.inference.processing.test_detokenizer import cut
from tests.inference.processing.test_text import byte_level
from tests.inference.tiny_models import IMAGE, WordTokenizer, finished, image_file, manifest, served
from triptych.messages import Chunk, Usage
from triptych.tasks.caption import CaptionRequest
from triptych.tasks.generate import GenerateRequest
from triptych.tasks.translate import TranslateRequest

ids_of_tokens = st.lists(st.integers(0, 319), max_size=20)
texts = st.lists(st.text(alphabet=" theo�", min_size=1, max_size=3), max_size=3)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> FastTokenizer:
    folder: Path = tmp_path_factory.mktemp("fast")
    return FastTokenizer(byte_level(folder), folder)


def read(live: IncrementalText, tokens: TokenChunk, cuts: random.Random) -> str:
    text, place = "", 0
    while place < len(tokens.token_ids):
        size = cuts.randint(1, 4)
        text += live.add(tokens[place : place + size])
        place += size
    return text + live.finish()


@given(ids_of_tokens, texts, st.integers(0, 99))
def test_text_is_that_of_the_whole_sequence_cut_at_the_first_stop(
    tokenizer: FastTokenizer, ids: list[int], stops: list[str], seed: int
) -> None:
    tokens = TokenChunk(tuple(ids), tuple(-float(n) for n in ids))
    live = IncrementalText(tokenizer, stops=stops)
    text, is_cut = cut(tokenizer.decode(ids), stops)
    assert read(live, tokens, random.Random(seed)) == text
    assert live.is_stopped == is_cut
    assert live.tokens == tokens[: live.length]
    if not is_cut:
        assert live.length == len(ids)
        return
    # Stopped at the first token that completes the stop string.
    assert cut(tokenizer.decode(ids[: live.length]), stops) == (text, True)
    settled = tokenizer.decode(ids[: live.length - 1]).rstrip("\N{REPLACEMENT CHARACTER}")
    assert not cut(settled, stops)[1]


@given(ids_of_tokens, texts)
def test_leading_space_is_removed_before_stops_are_searched(
    tokenizer: FastTokenizer, ids: list[int], stops: list[str]
) -> None:
    live = IncrementalText(tokenizer, stops=stops, trim=LeadingSpace())
    text = live.add(TokenChunk(tuple(ids))) + live.finish()
    assert text == cut(tokenizer.decode(ids).removeprefix(" "), stops)[0]


@given(ids_of_tokens, ids_of_tokens)
def test_a_text_may_begin_with_tokens_that_were_not_generated(
    tokenizer: FastTokenizer, begun: list[int], ids: list[int]
) -> None:
    live = IncrementalText(tokenizer, begins_with=begun, trim=Stripping())
    text = "".join(live.add(TokenChunk((number,))) for number in ids) + live.finish()
    assert text == tokenizer.decode([*begun, *ids]).strip()
    assert live.length == len(ids)


Streams = list[tuple[int, ...]]


@pytest.fixture
def speaker() -> LoadedModel:
    greedy = manifest("generate").generation.model_copy(update={"num_beams": 1})
    return served(manifest("generate", generation=greedy), WordTokenizer())


def translation(model: LoadedModel, *texts: str) -> translate.TranslatePlan:
    return translate.TASK.prepare(TranslateRequest(texts=list(texts), num_beams=1), (), model)


def run(
    streaming: Streaming, streams: Streams, order: random.Random, failing: dict[int, ServingError]
) -> list[Chunk]:
    """Calls in any order, a few tokens at a time; a failing one breaks off in the middle."""
    chunks: list[Chunk] = []
    places = dict.fromkeys(range(len(streams)), 0)
    while places:
        call = order.choice(list(places))
        place, ids = places[call], streams[call]
        if call in failing and place >= len(ids) // 2:
            chunks += streaming.fail(call, failing[call])
            del places[call]
        elif place < len(ids):
            size = order.randint(1, 3)
            chunks += streaming.add(call, TokenChunk(ids[place : place + size]))
            places[call] += size
        else:
            chunks += streaming.end(call, finished((ids,), (-1.0,), ("stop",)))
            del places[call]
    return chunks


def texts_of(chunks: list[Chunk]) -> dict[int, str]:
    texts: dict[int, str] = {}
    for chunk in chunks:
        texts[chunk.index] = texts.get(chunk.index, "") + chunk.text
    return texts


PARAGRAPHS = ["uno dos. tres\n\n cuatro cinco seis", "  siete ", "ocho. nueve. diez\n"]


@given(st.integers(0, 10_000))
def test_sentences_are_sent_in_order_in_whatever_order_they_are_generated(seed: int) -> None:
    model = served(manifest("translate"), WordTokenizer())
    plan = translation(model, *PARAGRAPHS)
    streams = [tuple(call.inputs["source_ids"].tolist()) for call in plan.calls]
    order = random.Random(seed)
    chunks = run(plan.streaming(), streams, order, {})
    whole = plan.finish([finished((ids,), (-1.0,), ("stop",)) for ids in streams])
    assert texts_of(chunks) == {item.index: item.text for item in whole.data}
    assert texts_of(merge(chunks)) == texts_of(chunks)
    lasts = [chunk for chunk in chunks if chunk.finish_reason]
    assert sorted(chunk.index for chunk in lasts) == [0, 1, 2]
    assert [chunk.usage is not None for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    tokens = sum(map(len, streams))
    assert chunks[-1].usage == Usage(prompt_tokens=tokens, completion_tokens=tokens)


def test_sentence_is_sent_as_it_is_generated(translator: LoadedModel) -> None:
    plan = translation(translator, "uno dos. tres cuatro")
    streaming = plan.streaming()
    first, second = (tuple(call.inputs["source_ids"].tolist()) for call in plan.calls)
    told = lambda chunks: "".join(chunk.text for chunk in chunks)  # noqa: E731
    assert told(streaming.add(0, TokenChunk(first[:1]))) == "uno"
    assert told(streaming.add(1, TokenChunk(second[:1]))) == ""
    assert told(streaming.add(0, TokenChunk(first[1:]))) == " dos."
    assert told(streaming.end(0, finished((first,), (0.0,), ("stop",)))) == " tres"
    assert told(streaming.add(1, TokenChunk(second[1:]))) == " cuatro"
    (last,) = streaming.end(1, finished((second,), (0.0,), ("length",)))
    assert (last.text, last.finish_reason) == ("", "length")


@given(st.integers(0, 10_000), st.sets(st.integers(0, 6), max_size=7))
def test_a_failed_sentence_fails_its_text_alone(seed: int, failing: set[int]) -> None:
    model = served(manifest("translate"), WordTokenizer())
    plan = translation(model, *PARAGRAPHS)
    streams = [tuple(call.inputs["source_ids"].tolist()) for call in plan.calls]
    streaming = plan.streaming()
    errors = {call: Overloaded("busy") for call in failing if call < len(streams)}
    chunks = run(streaming, streams, random.Random(seed), errors)
    broken = {
        index
        for index, text in enumerate(plan.texts)
        if set(errors) & {sentence.call for sentence in text.sentences}
    }
    if broken == {0, 1, 2}:
        assert streaming.failure is not None
        assert all(chunk.usage is None for chunk in chunks)
        return
    assert streaming.failure is None
    assert {chunk.index for chunk in chunks if chunk.error} == broken
    assert {chunk.index for chunk in chunks if chunk.finish_reason} == {0, 1, 2} - broken
    assert chunks[-1].usage is not None
    for index in broken:
        (end,) = [n for n, chunk in enumerate(chunks) if chunk.index == index and chunk.error]
        assert not [chunk for chunk in chunks[end + 1 :] if chunk.index == index]


def test_failed_text_needs_no_more_of_its_sentences(translator: LoadedModel) -> None:
    plan = translation(translator, "uno. dos", "tres")
    streaming = plan.streaming()
    assert streaming.fail(0, Unavailable("down")) == []
    bad, good = streaming.add(2, TokenChunk((4,)))
    assert (bad.index, bad.error.type, bad.usage) == (0, "unavailable", None)
    assert good.index == 1
    assert [streaming.needs(call) for call in range(3)] == [False, False, True]
    assert streaming.add(1, TokenChunk((4,))) == streaming.end(1) == []


def test_errors_of_items_precede_the_first_chunk(translator: LoadedModel) -> None:
    plan = translation(translator, "", "uno", " ")
    streaming = plan.streaming()
    chunks = streaming.add(0, TokenChunk((3,)))
    assert [(chunk.index, chunk.error is None) for chunk in chunks] == [
        (0, False), (2, False), (1, True),
    ]  # fmt: skip


def test_request_that_fails_as_a_whole_sends_no_chunk(translator: LoadedModel) -> None:
    streaming = translation(translator, "", "uno").streaming()
    error = Overloaded("busy")
    assert streaming.fail(0, error) == []
    assert streaming.failure is error


def test_a_stop_string_ends_the_stream(speaker: LoadedModel) -> None:
    request = GenerateRequest(prompts=["a"], stop=["three"], logprobs=1, stream=True)
    plan = generate.TASK.prepare(request, (), speaker)
    one, two, three, four = speaker.tokenizer.encode("one two three four", add_special_tokens=False)
    streaming = plan.streaming()
    tokens = TokenChunk((one, two, three, four), (-0.5, -0.25, -1.0, -2.0), (((one, -0.5),),) * 4)
    (chunk,) = streaming.add(0, tokens[:1])
    assert (chunk.text, [entry.token for entry in chunk.logprobs]) == ("one", ["one"])
    assert streaming.needs(0)
    assert streaming.add(0, tokens[1:]) == []
    assert not streaming.needs(0)
    (last,) = streaming.end(0)
    assert (last.text, last.finish_reason) == (" two ", "stop")
    assert [entry.token for entry in last.logprobs] == ["two", "three"]
    assert last.usage == Usage(prompt_tokens=2, completion_tokens=3)


def test_possible_beginning_of_a_stop_string_is_held_back(speaker: LoadedModel) -> None:
    plan = generate.TASK.prepare(
        GenerateRequest(prompts=["a"], stop=["two three"], stream=True), (), speaker
    )
    one, two = speaker.tokenizer.encode("one two", add_special_tokens=False)
    streaming = plan.streaming()
    assert [chunk.text for chunk in streaming.add(0, TokenChunk((one,)))] == ["one"]
    assert [chunk.text for chunk in streaming.add(0, TokenChunk((two,)))] == [" "]
    (last,) = streaming.end(0, finished(((one, two),), (0.0,), ("length",)))
    assert (last.text, last.finish_reason) == ("two", "length")


def test_a_caption_begins_with_its_prompt(speaker: LoadedModel) -> None:
    model = served(
        speaker.manifest.model_copy(update={"image": IMAGE, "tasks": {"caption": {}}}),
        speaker.tokenizer,
    )
    request = CaptionRequest(images=["x", "y"], prompt="a red", stream=True)
    plan = caption.TASK.prepare(request, [image_file("red"), b"junk"], model)
    (word,) = model.tokenizer.encode("circle", add_special_tokens=False)
    streaming = plan.streaming()
    bad, chunk = streaming.add(0, TokenChunk((word, 1)))
    assert (bad.index, bad.error.type) == (1, "unsupported_image")
    assert (chunk.index, chunk.text) == (0, "a red circle")
    (last,) = streaming.end(0, finished(((word, 1),), (0.0,), ("stop",)))
    assert last.usage == Usage(prompt_tokens=2, completion_tokens=2)
