"""Captioners of the scenes."""

from collections.abc import Callable

from examples.history import task_requests
from examples.history.system import Group, Measure, Score, System, percent
from examples.scenes.scores import (
    TEST_SEED,
    caption_exact_match,
    caption_words_right,
    swapped_caption_match,
)


def _right(score: Callable[..., float]) -> Score:
    return percent(score, task_requests.captions, TEST_SEED)


_ONE_CNN = "python -m examples.history.cnn_captioners.train"

GROUP = Group(
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
        Measure("exact %, withheld combinations", _right(caption_exact_match)),
        Measure("words right %, withheld combinations", _right(caption_words_right)),
        Measure("control: swapped pictures", _right(swapped_caption_match)),
    ),
)
