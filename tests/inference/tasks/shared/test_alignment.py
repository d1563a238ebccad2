"""Alignments of responses."""

import numpy as np
import pytest

from inference.bundle.inputs import AlignmentSpec
from inference.errors import InternalError, InvalidRequest
from inference.tasks import caption, translate
from inference.tasks.shared.loaded_model import LoadedModel
from tests.inference.results import finished
from tests.inference.tiny_models import image_file, served
from triptych.tasks.caption import CaptionRequest
from triptych.tasks.translate import TranslateRequest


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
    assert item.alignment.weights == [
        [0.5, 0.25, 0.25, 0, 0],
        [0, 0, 1, 0, 0],
        [0, 0, 0, 0.1, 0.9],
    ]


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


def test_model_without_alignment_is_refused_by_name(
    translator: LoadedModel, captioner: LoadedModel, aligning: LoadedModel
) -> None:
    texts = TranslateRequest(texts=["uno"], return_attention=True)
    with pytest.raises(InvalidRequest, match="tiny-translate does not return attention") as caught:
        translate.TASK.prepare(texts, (), translator)
    assert caught.value.field == "return_attention"
    images = CaptionRequest(images=["x"], return_attention=True)
    with pytest.raises(InvalidRequest, match="tiny-caption does not return attention") as caught:
        caption.TASK.prepare(images, [image_file("red")], captioner)
    assert caught.value.field == "return_attention"
    over_tokens = with_alignment(captioner, over="tokens")
    with pytest.raises(InvalidRequest, match="does not return attention"):
        caption.TASK.prepare(images, [image_file("red")], over_tokens)


def test_streams_carry_no_alignment(aligning: LoadedModel, attending: LoadedModel) -> None:
    texts = TranslateRequest(texts=["uno"], return_attention=True, stream=True, num_beams=1)
    with pytest.raises(InvalidRequest, match="stream does not carry return_attention"):
        translate.TASK.prepare(texts, (), aligning)
    images = CaptionRequest(images=["x"], return_attention=True, stream=True, num_beams=1)
    with pytest.raises(InvalidRequest, match="stream does not carry return_attention"):
        caption.TASK.prepare(images, [image_file("red")], attending)


def test_matrices_are_bounded(aligning: LoadedModel) -> None:
    sentences = "uno dos tres. " * 300
    request = TranslateRequest(texts=[sentences], return_attention=True)
    with pytest.raises(InvalidRequest, match="1200 tokens, at most 1024") as caught:
        translate.TASK.prepare(request, (), aligning)
    assert caught.value.field == "return_attention"


def test_missing_alignment_is_an_internal_error(aligning: LoadedModel) -> None:
    request = TranslateRequest(texts=["uno"], return_attention=True)
    plan = translate.TASK.prepare(request, (), aligning)
    with pytest.raises(InternalError, match="returned no alignment"):
        plan.finish([finished(((1,),), (0.0,))])
