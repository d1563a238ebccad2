"""Systems that read images: classifiers, captioners, and language models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from examples.clip import shots as clip_shots
from examples.clip.shots import FAMILIAR, FOREIGN, LABELS, chosen_share, probe_share
from examples.history import task_requests
from examples.history.flamingo import scores as flamingo_scores
from examples.history.system import Ask, Curve, Group, Measure, Score, System, percent
from examples.history.task_requests import question_about
from examples.scenes import scores as score_scenes
from examples.scenes.scores import (
    TEST_SEED,
    caption_exact_match,
    caption_words_right,
    swapped_caption_match,
)
from examples.texts.bindings import Split
from examples.vit import scores as score_vit
from examples.vqa import scores as vqa_scores


def _caption_score(score: Callable[..., float]) -> Score:
    return percent(score, task_requests.captions, TEST_SEED)


_ONE_CNN = "python -m examples.history.cnn_captioners.train"

CAPTIONS = Group(
    name="captioning",
    title="Captions of pictures",
    story="""The scenes of `examples/scenes/scene.py`: one or two things with size, colour,
texture and shape. Every picture has a combination of attributes that is in no training picture. The
control compares each caption with the truth of the next picture. The three on the same CNN are
about 1 MB each and learnt from the same pictures in one short run; the others are larger and were
trained for much longer.""",
    systems=(
        System(
            checkpoint="history-show-and-tell",
            title="Show and Tell: CNN + LSTM",
            year=2015,
            paper="Vinyals et al., arXiv 1411.4555",
            idea="The picture is the first word that the LSTM reads; the rest is a translation.",
            command=_ONE_CNN,
        ),
        System(
            checkpoint="history-show-attend-tell",
            title="Show, Attend and Tell, on the same CNN",
            year=2015,
            paper="Xu et al., arXiv 1502.03044",
            idea="Each word attends to a region of the picture.",
            command=_ONE_CNN,
        ),
        System(
            checkpoint="example-show-attend-tell",
            title="Show, Attend and Tell: CNN + LSTM with attention",
            year=2015,
            paper="Xu et al., arXiv 1502.03044",
            idea="Each word attends to a region of the picture.",
            command="python -m examples.show_attend_tell.train",
        ),
        System(
            checkpoint="history-cnn-transformer",
            title="CNN + Transformer, on the same CNN",
            year=2018,
            paper="Sharma et al., ACL P18-1238; Vaswani et al., arXiv 1706.03762",
            idea="Words attend to words and to cells at once, without a state from step to step.",
            command=_ONE_CNN,
        ),
        System(
            checkpoint="example-captioner",
            title="ViT + GPT-2",
            year=2021,
            paper="Dosovitskiy et al., arXiv 2010.11929; Radford et al. 2019",
            idea="A picture is a sequence of patches, and one kind of layer reads and writes.",
            command="python -m examples.captioner.train",
        ),
    ),
    measures=(
        Measure("exact %, withheld combinations", _caption_score(caption_exact_match)),
        Measure("words right %, withheld combinations", _caption_score(caption_words_right)),
        Measure("control: swapped pictures", _caption_score(swapped_caption_match)),
    ),
)


def _choose(ask: Ask, image: Image.Image, labels: list[str]) -> str:
    (item,) = ask("zero-shot", {"images": task_requests.as_pngs([image]), "labels": labels})
    return str(item.labels[0].label)


_CLASSES = (score_vit.class_accuracy, task_requests.image_classes, score_vit.TEST_SEED)

CLASSES = Group(
    name="image-classes",
    title="Classes of pictures",
    story="""The largest thing of a scene (`examples/vit/scores.py`) in 72 classes,
with textures that training never combines with the class. The control is the next picture's class.
The layers of the Perceiver began as four of the ViT's five and were trained further on 48,000
pictures, so that the table does not compare the architectures.""",
    systems=(
        System(
            checkpoint="example-vit",
            title="ViT",
            year=2021,
            paper="Dosovitskiy et al., arXiv 2010.11929",
            idea="A Transformer reads the patches of a picture as words, without convolutions.",
            command="python -m examples.vit.train",
        ),
        System(
            checkpoint="history-perceiver",
            title="Perceiver IO",
            year=2021,
            paper="Jaegle et al., arXiv 2103.03206 and 2107.14795",
            idea="A fixed number of latents reads inputs of any kind and length once; the layers "
            "are between latents.",
            command="python -m examples.history.perceiver.train",
        ),
    ),
    measures=(
        Measure("right %, withheld combinations", percent(*_CLASSES)),
        Measure("control: swapped pictures", percent(*_CLASSES, is_swapped=True)),
    ),
)

ZERO_SHOT = Group(
    name="zero-shot",
    title="Labels in words",
    story=f"""{score_scenes.CHOICES} labels a picture, the truth and others that differ from it in
one attribute. The control gives each question the next picture.""",
    systems=(
        System(
            checkpoint="example-clip",
            title="CLIP",
            year=2021,
            paper="Radford et al., arXiv 2103.00020",
            idea="Pictures and texts share one space, so that any words can be the classes.",
            command="python -m examples.clip.train",
        ),
    ),
    measures=(
        Measure(
            "top-1 %, withheld combinations",
            percent(score_scenes.zero_shot_top1, _choose, score_scenes.TEST_SEED),
        ),
        Measure(
            "control: swapped pictures",
            percent(score_scenes.swapped_zero_shot_top1, _choose, score_scenes.TEST_SEED),
        ),
    ),
)


KINDS = ("colour", "shape", "texture", "relation", "description")


def _answers(ask: Ask, asked: list[tuple[Image.Image, str]]) -> list[str]:
    return [str(ask("chat", question_about(*one))[0].text) for one in asked]


def _right(kind: str, ask: Ask, count: int) -> float:
    return 100 * vqa_scores.accuracy(partial(_answers, ask), count, vqa_scores.TEST_SEED)[kind]


QUESTIONS = Group(
    name="picture-questions",
    title="Questions about pictures",
    story="""Scenes of one or two things, each with a question of `examples/vqa/questions.py`: about
colour, shape, texture or size of the thing that another attribute or its place points at, how many
there are, whether there is such a thing, whether one is left of or above the other, or a
description. Every picture has a combination of attributes that is in no training picture; an answer
is right where it is the expected text, letter by letter. Answers to yes or no questions are guessed
half of the time. The control shows the next question's picture.""",
    systems=(
        System(
            checkpoint="example-vqa",
            title="LLaVA",
            year=2023,
            paper="Liu et al., arXiv 2304.08485",
            idea="The patches of an image are words of the prompt of a language model.",
            command="python -m examples.vqa.train",
        ),
    ),
    measures=(
        Measure("right %, all questions", partial(_right, "all")),
        *(Measure(f"right %, {kind}", partial(_right, kind)) for kind in KINDS),
        Measure(
            "control: another picture",
            percent(vqa_scores.swapped_accuracy, _answers, vqa_scores.TEST_SEED),
        ),
    ),
)


def _words_of_episodes(ask: Ask, questions: list[flamingo_scores.PictureQuestion]) -> list[str]:
    return [_answer(ask, question) for question in questions]


def _answer(ask: Ask, question: flamingo_scores.PictureQuestion) -> str:
    fields = {
        "prompts": ["<image>"],
        "examples": [("<image>", words) for words in question.shots],
        "images": task_requests.as_pngs(question.images),
        "max_new_tokens": flamingo_scores.MAX_ANSWER,
    }
    (item,) = ask("generate", fields)
    return str(item.text)


def _right_words(shots: int, split: Split | None, ask: Ask, count: int) -> float:
    return 100 * flamingo_scores.accuracy(partial(_words_of_episodes, ask), shots, split, count)


def _swapped(ask: Ask, count: int) -> float:
    return 100 * flamingo_scores.swapped_accuracy(
        partial(_words_of_episodes, ask), 4, "held_out", count
    )


WORDS = Group(
    name="picture-words",
    title="Words for pictures that only the prompt defines",
    story="""The episodes of `examples/history/flamingo/picture_episodes.py`: pictures of one thing,
each with a word for its colour and a word for its shape, and a last picture without words. Words
are made up and drawn for each episode; those of the scores are in no training episode, and every
picture has a combination of attributes that is in no training picture. The colour that is asked
about is in one shot and the shape in another, so that no answer is that of a shot; a guess among
the words of the prompt is right in 25, 6 and 2 % of questions with 2, 4 and 8 shots. Without shots,
the model has plain words for the picture, "red circle". The control shows the next question's
    picture.""",
    systems=(
        System(
            checkpoint="history-flamingo",
            title="Flamingo, as Idefics has it",
            year=2022,
            paper="Alayrac et al., arXiv 2204.14198; Laurençon et al. 2023, arXiv 2306.16527",
            idea="Pictures stand between the words of a prompt, and examples need no training.",
            command="python -m examples.history.flamingo.train",
        ),
    ),
    measures=(
        Measure("right %, plain words, no shots", partial(_right_words, 0, None)),
        Measure("right %, plain words, 4 shots", partial(_right_words, 4, None)),
        Measure("right %, new words, no shots", partial(_right_words, 0, "held_out")),
        Measure("right %, words of training, 4 shots", partial(_right_words, 4, "train")),
        Measure("right %, new words, 4 shots", partial(_right_words, 4, "held_out")),
        Measure("control: another picture, new words, 4 shots", _swapped),
    ),
    curve=Curve(
        title="right %, new words, by shots",
        axis="pictures with words before the one that is asked about",
        points=tuple(
            Measure(str(shots), partial(_right_words, shots, "held_out"))
            for shots in flamingo_scores.SHOTS
        ),
    ),
)


def _choose_by_templates(
    ask: Ask, templates: Sequence[str], images: list[Image.Image], labels: Sequence[str]
) -> list[str]:
    fields = {"labels": list(labels), "templates": list(templates)}
    found = task_requests.items(ask, "zero-shot", "images", task_requests.as_pngs(images), **fields)
    return [item.labels[0].label for item in found]


def _embed(ask: Ask, images: list[Image.Image]) -> NDArray[Any]:
    found = task_requests.items(ask, "embed", "images", task_requests.as_pngs(images))
    return np.array([item.embedding for item in found])


def _prompted(templates: Sequence[str], ask: Ask, count: int) -> float:
    """All templates together: their vectors' mean."""
    return 100 * chosen_share(partial(_choose_by_templates, ask, templates), count)


def _alone(templates: Sequence[str], ask: Ask, count: int) -> float:
    """The mean of the scores of each template."""
    return float(np.mean([_prompted([template], ask, count) for template in templates]))


def _probed(shots: int, ask: Ask, count: int) -> float:
    return 100 * probe_share(partial(_embed, ask), shots, count)


FEW_SHOT = Group(
    name="few-shot-pictures",
    title="Classes of pictures by prompts and by examples",
    story=f"""Texture and shape of pictures with one thing ({len(LABELS)} classes), in colours that
training never combines with them, by one CLIP. By prompts: the words of a class in a template, or
in several, whose vectors are averaged and normalised again (`templates` of `/v1/zero-shot`).
Familiar templates are those of its training; foreign ones have words that it never read. By
examples: logistic regression on the pictures' vectors (`/v1/embed`), the weights of the model
unchanged; where the language model above reads its examples in the prompt. An average makes up for
templates that the model does not know, and adds nothing to those it knows; 16 examples a class are
worth less than the words of the class.""",
    systems=(
        System(
            checkpoint="example-clip",
            title="CLIP, zero-shot and with a linear probe",
            year=2021,
            paper="Radford et al., arXiv 2103.00020",
            idea="A class is a text in a template, an average of several, or a line through vectors"
            " of examples.",
            command="python -m examples.clip.train",
        ),
    ),
    measures=(
        Measure(f'zero-shot %, "{FAMILIAR[0]}"', partial(_prompted, FAMILIAR[:1])),
        Measure(f"zero-shot %, {len(FAMILIAR)} familiar, alone", partial(_alone, FAMILIAR)),
        Measure(f"zero-shot %, {len(FAMILIAR)} familiar, averaged", partial(_prompted, FAMILIAR)),
        Measure(f"zero-shot %, {len(FOREIGN)} foreign, alone", partial(_alone, FOREIGN)),
        Measure(f"zero-shot %, {len(FOREIGN)} foreign, averaged", partial(_prompted, FOREIGN)),
        Measure("linear probe %, 16 examples a class", partial(_probed, max(clip_shots.SHOTS))),
    ),
    curve=Curve(
        title="right %, by examples",
        axis="labelled pictures a class; 0: zero-shot, all familiar templates",
        points=(
            Measure("0", partial(_prompted, FAMILIAR)),
            *(Measure(str(shots), partial(_probed, shots)) for shots in clip_shots.SHOTS),
        ),
    ),
)
