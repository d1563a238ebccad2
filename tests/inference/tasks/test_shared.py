"""The registry of tasks, and what several share: calls, alignments, texts batched by length."""

from __future__ import annotations

import pkgutil
import sys
from dataclasses import replace

import numpy as np
import pytest

import inference.tasks
from inference.bundle.inputs import AlignmentSpec, PromptImages
from inference.bundle.manifest import Manifest, Part, Role
from inference.engine import codec
from inference.errors import BundleError, InternalError
from inference.generation import Generation, Overrides
from inference.processing.tokenizer import EncodedText
from inference.tasks import TASKS, caption, translate
from inference.tasks.shared.canaries import generator_canary, part_canaries
from inference.tasks.shared.length_buckets import LARGE, ROWS
from inference.tasks.shared.loaded_model import LoadedModel
from inference.tasks.shared.model_calls import Array, GenerateCall, InferCall
from inference.tasks.shared.needs import IMAGE_EMBEDDING, TEXT_EMBEDDING
from inference.tasks.shared.served_task import AnyTask, Plan, ServedTask, sections_of
from inference.tasks.shared.text_rows import TextRows
from tests.inference.tiny_models import (
    IMAGE,
    finished,
    image_file,
    manifest,
    served,
    text_classifier,
    two_towers,
    word_labeller,
)
from tests.programs import run_program
from triptych.tasks import TASKS as DECLARED
from triptych.tasks.caption import CaptionRequest
from triptych.tasks.translate import TranslateRequest


def test_every_declared_task_is_served_and_no_other() -> None:
    assert list(TASKS) == list(DECLARED)
    for name, task in TASKS.items():
        assert task.declaration is DECLARED[name]


def test_a_file_is_a_task() -> None:
    modules = pkgutil.iter_modules(inference.tasks.__path__)
    files = {module.name for module in modules if not module.ispkg}
    assert files == {task.declaration.method for task in TASKS.values()}


def test_tasks_load_no_library_of_gateway_or_tokenizers() -> None:
    program = "import sys, inference.tasks; print(*sys.modules)"
    heavy = {"fastapi", "grpc", "tritonclient", "tokenizers", "sentencepiece", "onnxruntime"}
    assert not heavy & set(run_program(sys.executable, "-c", program).split())


LACKING = {
    "no generator": (manifest("translate", generation=None), "translate needs a generator"),
    "no tokenizer": (manifest("generate", tokenizer=None), "generate needs a tokenizer"),
    "no image recipe": (manifest("caption"), "caption needs an image recipe"),
    "no towers": (
        manifest("zero-shot", {"logit_scale": 1.0}, image=IMAGE),
        "takes pixels and returns embedding and an image recipe, a part that takes tokens",
    ),
    "other scores of tokens": (
        word_labeller().model_copy(update={"tasks": {"answer": {}}}),
        r"answer needs a part that takes tokens and returns logits \(B, T, 2\)$",
    ),
    "no section": (
        two_towers().model_copy(update={"tasks": {"zero-shot": {}}}),
        "tasks.zero-shot.logit_scale: Field required",
    ),
    "bad section": (manifest("translate", {"languages": ["es"]}), r"tasks.translate.languages.0"),
    "unknown field": (manifest("generate", {"tempo": 1}), "tasks.generate.tempo: Extra inputs"),
    "unknown task": (manifest("paint"), "unknown task 'paint'; supported are: answer, caption, "),
}


@pytest.mark.parametrize(("lacking", "message"), LACKING.values(), ids=LACKING)
def test_bundle_that_lacks_a_need_is_refused_by_name(lacking: Manifest, message: str) -> None:
    with pytest.raises(BundleError, match=message):
        sections_of(lacking, TASKS)


class Embeddings(ServedTask):
    """A task without a section: any bundle with one of the towers serves it."""

    declaration = DECLARED["zero-shot"]
    is_implied = True
    needs = (TEXT_EMBEDDING | IMAGE_EMBEDDING,)

    @property
    def name(self) -> str:
        return "embeddings"

    def prepare(self, *_: object) -> Plan:
        raise NotImplementedError

    def canary(self, model: LoadedModel) -> list:
        return []


class BothTowers(Embeddings):
    """A task without a section that needs two things."""

    needs = (TEXT_EMBEDDING, IMAGE_EMBEDDING)


def test_task_without_section_needs_everything_that_it_declares() -> None:
    whole = two_towers()
    half = whole.model_copy(update={"graphs": {"image": whole.graphs["image"]}, "tasks": {}})
    tasks: dict[str, AnyTask] = {"zero-shot": TASKS["zero-shot"], "embeddings": BothTowers()}
    assert "embeddings" in sections_of(whole, tasks)
    assert sections_of(half, tasks) == {}


@pytest.mark.parametrize("tower", ["image", "text", None])
def test_task_without_section_is_served_by_every_bundle_that_fits(tower: str | None) -> None:
    listed = {name: TASKS[name] for name in ("zero-shot", "generate")}
    tasks: dict[str, AnyTask] = {**listed, "embeddings": Embeddings()}
    fitting = two_towers()
    if tower:
        graphs = {tower: fitting.graphs[tower]}
        fitting = fitting.model_copy(update={"graphs": graphs, "tasks": {}})
    assert list(sections_of(fitting, tasks)) == [*fitting.tasks, "embeddings"]
    assert "embeddings" not in sections_of(manifest("generate"), tasks)
    blind = fitting.model_copy(update={"graphs": {}, "tasks": {}})
    assert sections_of(blind, tasks) == {}


def test_canary_has_a_token_where_its_text_has_none(
    translator: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(translator.tokenizer, "encode", lambda text: [])
    (source,) = generator_canary(translator).inputs.values()
    assert source.tolist() == [translator.pad_token_id]


def test_missing_part_has_no_canary(translator: LoadedModel) -> None:
    assert part_canaries(translator, (Role.PIXELS, Role.EMBEDDING)) == []


def test_model_without_tokenizer_serves_images() -> None:
    towers = two_towers()
    images = towers.model_copy(
        update={"graphs": {"image": towers.graphs["image"]}, "tokenizer": None, "tasks": {}}
    )
    model = replace(served(images), optional_tokenizer=None)
    (call,) = part_canaries(model, (Role.PIXELS, Role.EMBEDDING))
    assert call.inputs["pixels"].shape == (1, 4, 4, 3)


def with_alignment(model: LoadedModel, **fields: object) -> LoadedModel:
    spec = AlignmentSpec(**fields)
    return served(model.manifest.model_copy(update={"alignment": spec}), model.tokenizer)


@pytest.fixture
def aligning(translator: LoadedModel) -> LoadedModel:
    return with_alignment(translator, over="tokens")


@pytest.fixture
def attending(captioner: LoadedModel) -> LoadedModel:
    return with_alignment(captioner, over="patches", grid=(2, 3))


def test_sentences_attend_to_themselves_only(aligning: LoadedModel) -> None:
    request = TranslateRequest(texts=["uno dos. tres"], return_attention=True)
    plan = translate.TASK.prepare(request, (), aligning)
    assert all(call.options.return_alignment for call in plan.calls)
    one, two = aligning.tokenizer.encode("one two", add_special_tokens=False)
    # (tokens, S), padded below and to the right as the engine pads
    first = np.array([[0.5, 0.25, 0.25, 9.0], [0.0, 0.0, 1.0, 9.0], [9, 9, 9, 9]], np.float32)
    second = np.array([[0.1, 0.9]], np.float32)
    (item,) = plan.finish(
        [
            finished(((one, 1), (two,)), (-1.0, -2.0), alignments=(first, first)),
            finished(((two,),), (-1.0,), alignments=(second,)),
        ]
    ).data
    assert item.alignment.source_tokens == ["uno", "dos.", "</s>", "tres", "</s>"]
    assert item.alignment.target_tokens == ["one", "</s>", "two"]
    assert item.alignment.weights == [[0.5, 0.25, 0.25, 0, 0], [0, 0, 1, 0, 0], [0, 0, 0, 0.1, 0.9]]


def test_alignment_is_not_computed_unless_requested(aligning: LoadedModel) -> None:
    for asked in (None, False):
        request = TranslateRequest(texts=["uno"], return_attention=asked)
        plan = translate.TASK.prepare(request, (), aligning)
        assert plan.calls[0].options.return_alignment is None
        assert plan.finish([finished(((1,),), (0.0,))]).data[0].alignment is None


def test_tokens_of_a_caption_attend_to_patches(attending: LoadedModel) -> None:
    request = CaptionRequest(images=["x"], return_attention=True, prompt="a")
    plan = caption.TASK.prepare(request, [image_file("red")], attending)
    (word,) = attending.tokenizer.encode("dot", add_special_tokens=False)
    weights = np.arange(14, dtype=np.float32).reshape(2, 7) / 10  # the first stands before the grid
    (item,) = plan.finish([finished(((word, 1),), (-1.0,), alignments=(weights,))]).data
    assert item.attention.tokens == ["dot", "</s>"]
    assert item.attention.grid == [2, 3]
    assert item.attention.weights[0] == [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]
    assert len(item.attention.weights) == 2


def test_missing_alignment_is_an_internal_error(aligning: LoadedModel) -> None:
    request = TranslateRequest(texts=["uno"], return_attention=True)
    plan = translate.TASK.prepare(request, (), aligning)
    with pytest.raises(InternalError, match="returned no alignment"):
        plan.finish([finished(((1,),), (0.0,))])


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


RULES = Generation(pad_token_id=0, max_new_tokens=4)
ONE, SEVERAL = np.zeros((4, 4, 3), np.uint8), np.zeros((2, 4, 4, 3), np.uint8)
FLOATS = np.zeros((2, 4, 4, 3), np.float32)
SIZES = np.array([[4, 4], [4, 2]], np.int64)
TOKENS = {codec.PROMPT_IDS: np.arange(3), codec.SOURCE_IDS: np.arange(5)}
IMAGES: tuple[dict[str, Array], ...] = (
    {},
    {codec.PIXELS: ONE},
    {codec.PIXELS: SEVERAL},
    {codec.PIXELS: FLOATS, codec.IMAGE_SIZES: SIZES},
)


@pytest.mark.parametrize("names", [(), *((name,) for name in TOKENS), tuple(TOKENS)])
@pytest.mark.parametrize("held", IMAGES)
def test_tokens_of_a_prompt_are_those_that_the_engine_counts(
    names: tuple[str, ...], held: dict[str, Array]
) -> None:
    inputs = {**{name: TOKENS[name] for name in names}, **held}
    request = codec.decode_request(codec.encode_request(inputs, Overrides()), RULES)
    if held and held[codec.PIXELS].ndim == 4:
        request = replace(request, images=PromptImages(positions=2, token_id=3))
    assert GenerateCall("tiny", 1, inputs, Overrides()).prompt_tokens == request.prompt_tokens
