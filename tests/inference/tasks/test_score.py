"""Scores of given targets, from request to calls to response."""

from __future__ import annotations

from dataclasses import replace

from inference.bundle.manifest import Graph, Limits, Role, Tensor
from inference.engine.codec import PIXELS, PROMPT_IDS, SOURCE_IDS
from inference.generation import Generation
from inference.tasks import TASKS
from inference.tasks.score import TASK, ScorePlan
from inference.tasks.shared.loaded_model import LoadedModel, TaskLimits
from inference.tasks.shared.model_calls import Outcome
from inference.tasks.shared.served_task import sections_of
from tests.inference.tiny_models import (
    IMAGE,
    STEP,
    WordTokenizer,
    finished,
    image_file,
    manifest,
    served,
)
from triptych.tasks.score import ScoreRequest

LIMITS = TaskLimits(max_input_tokens=30, max_client_batch_size=4)
END = 1


def model(kind: str, **rules: object) -> LoadedModel:
    defaults = {"pad_token_id": 0, "max_new_tokens": 5, "eos_token_ids": (END,), "num_beams": 2}
    fields: dict[str, object] = {"generation": Generation(**{**defaults, **rules})}
    if kind == "translator":
        source = Tensor(name="ids", dtype="int64", shape=("B", "S"), role=Role.SOURCE_TOKENS)
        admit = Graph(file="admit.onnx", inputs=(source,), outputs=())
        fields["graphs"] = {"admit": admit, "step": STEP}
    if kind == "captioner":
        fields["image"] = IMAGE
    fields["limits"] = Limits(max_input_tokens=12, max_total_tokens=16)
    return served(manifest("generate", **fields), WordTokenizer())


def plan(loaded: LoadedModel, *targets: str, **fields: object) -> ScorePlan:
    images = fields.pop("images", None)
    request = ScoreRequest(
        targets=list(targets), images=["x"] * len(images or ()) or None, **fields
    )
    return TASK.prepare(request, images or (), replace(loaded, task_limits=LIMITS))


def given(loaded: LoadedModel, made: ScorePlan) -> list[str]:
    """The tokens that each call takes, with a mark for the end token."""
    texts = []
    for call in made.calls:
        ids = call.options.given_ids or ()
        assert call.options.max_new_tokens == len(ids)
        assert (call.options.num_beams, call.options.do_sample) == (1, False)
        end = " ." if ids[-1] == END else ""
        texts.append(loaded.tokenizer.decode(ids) + end)
    return texts


def test_one_text_is_for_all_targets() -> None:
    loaded = model("translator", decoder_start_ids=(2,))
    made = plan(loaded, "a", "b", "c", texts="el gato")
    read = {loaded.tokenizer.decode(call.inputs[SOURCE_IDS]) for call in made.calls}
    assert (read, len(made.calls)) == ({"el gato"}, 3)


def test_a_forced_first_token_is_scored() -> None:
    loaded = model("translator", decoder_start_ids=(2,), forced_bos_token_id=7)
    (call,) = plan(loaded, "a", texts="b").calls
    assert call.options.given_ids[0] == 7


def test_a_language_model_scores_continuations_without_the_end() -> None:
    loaded = model("language")
    made = plan(loaded, " is red", " is blue .", texts="the ring")
    assert given(loaded, made) == ["is red", "is blue ."]
    prompts = [loaded.tokenizer.decode(call.inputs[PROMPT_IDS]) for call in made.calls]
    assert prompts == ["the ring", "the ring"]


def test_a_captioner_scores_texts_of_images() -> None:
    loaded = model("captioner", decoder_start_ids=(2,))
    made = plan(loaded, "a ring", "a cat", images=[image_file("red")])
    assert given(loaded, made) == ["a ring .", "a cat ."]
    assert all(call.inputs[PIXELS].shape == (4, 4, 3) for call in made.calls)


def answer(log_probs: tuple[float, ...]) -> Outcome:
    ids = tuple(range(3, 3 + len(log_probs)))
    return finished((ids,), (-99.0,), log_probs=(log_probs,), top=((),))


def test_targets_that_do_not_fit_are_errors_of_their_own() -> None:
    loaded = model("translator", decoder_start_ids=(2,))
    made = plan(loaded, "a " * 20, "b", "", texts="x", with_end=False)
    long, fits, empty = made.finish([answer((-1.0,))]).data
    assert long.error.message == (
        "targets.0 has 20 tokens behind 1, tiny-generate holds 16: shorten it"
    )
    assert fits.score == -1.0
    assert "targets.2 is empty" in empty.error.message


def test_models_take_what_they_read() -> None:
    texts, images = {"texts": ["a"]}, {"images": ["x"]}
    cases = {"translator": [texts], "captioner": [images], "language": [texts, {}]}
    for kind, taken in cases.items():
        for fields in (texts, images, {}, texts | images):
            request = ScoreRequest(targets=["a"], **fields)
            assert TASK.accepts(request, model(kind)) == (fields in taken)
    refused = TASK.refusal(ScoreRequest(targets=["a"]), [model("captioner")])
    assert "tiny-generate reads images" in refused.message


def test_generators_of_one_language_serve_it_without_a_section() -> None:
    assert "score" in sections_of(manifest("generate"), TASKS)
    assert "score" in sections_of(manifest("translate", {"languages": [("es", "en")]}), TASKS)
    many = {"tokens": {"codes": {"en": 4}, "place": "before"}}
    assert "score" not in sections_of(manifest("translate", many), TASKS)
