"""CLIP by prompts and by examples, beside the language model that answers by examples."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from examples.clip.shots import FAMILIAR, FOREIGN, LABELS, SHOTS, chosen_share, probe_share
from examples.history import task_requests
from examples.history.system import Ask, Curve, Group, Measure, System


def _choose(
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
    return 100 * chosen_share(partial(_choose, ask, templates), count)


def _alone(templates: Sequence[str], ask: Ask, count: int) -> float:
    """The mean of the scores of each template."""
    return float(np.mean([_prompted([template], ask, count) for template in templates]))


def _probed(shots: int, ask: Ask, count: int) -> float:
    return 100 * probe_share(partial(_embed, ask), shots, count)


GROUP = Group(
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
        Measure("linear probe %, 16 examples a class", partial(_probed, max(SHOTS))),
    ),
    curve=Curve(
        title="right %, by examples",
        axis="labelled pictures a class; 0: zero-shot, all familiar templates",
        points=(
            Measure("0", partial(_prompted, FAMILIAR)),
            *(Measure(str(shots), partial(_probed, shots)) for shots in SHOTS),
        ),
    ),
)
