"""Classifiers of the scenes, and models that compare pictures with texts."""

from PIL import Image

from examples.history import task_requests
from examples.history.system import Ask, Group, Measure, System, percent
from examples.scenes import scores as score_scenes
from examples.vit import scores as score_vit


def _choose(ask: Ask, image: Image.Image, labels: list[str]) -> str:
    (item,) = ask("zero-shot", {"images": task_requests.as_pngs([image]), "labels": labels})
    return str(item.labels[0].label)


_CLASSES = (score_vit.class_accuracy, task_requests.image_classes, score_vit.TEST_SEED)

CLASSES = Group(
    name="image-classes",
    title="Classes of pictures",
    story="""The largest thing of a scene (`examples/vit/largest_thing.py`) in 72 classes,
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
