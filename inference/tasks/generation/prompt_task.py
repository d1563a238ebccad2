"""Tasks whose prompts may hold examples and images.

```
Translate English to French:

sea otter => loutre de mer
cheese =>
```

As in Brown et al. 2020 (arXiv 2005.14165, figure 2.1). No space follows the last `=>`: in
byte-level BPE it belongs to the answer, from which it is removed. A line break ends the answer.
Prompts with one header share a prefix, token for token, so the engine's prefix cache holds it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from inference.bundle.manifest import Manifest
from inference.engine.codec import IMAGE_SIZES, PIXELS
from inference.errors import InvalidRequest, ServingError
from inference.processing.image import PILLOW_MAX_PIXELS
from inference.processing.prepared_image import PreparedImage, seen_together
from inference.tasks.generation.image_places import ImagePlaces
from inference.tasks.shared.canaries import generator_canary
from inference.tasks.shared.loaded_model import LoadedModel, TaskLimits, check_is_not_blank
from inference.tasks.shared.model_calls import Array, Call, unwrap
from inference.tasks.shared.needs import Need
from inference.tasks.shared.served_task import AnyRequest, AnySection, ServedTask
from triptych.task import IMAGES

SEPARATOR = " =>"
STOP = "\n"


def header(instruction: str | None, examples: Sequence[Any]) -> str:
    """The text before each prompt; empty without instruction and examples.

    Args:
        examples: Solved ones, each with `input` and `output`.

    Raises:
        InvalidRequest: an example is empty or has a line break.
    """
    parts = [f"{instruction.strip()}\n\n"] if instruction and instruction.strip() else []
    for index, example in enumerate(examples):
        question = _line(example.input, f"examples.{index}.input")
        answer = _line(example.output, f"examples.{index}.output")
        parts.append(f"{question}{SEPARATOR} {answer}{STOP}")
    return "".join(parts)


def before(instruction: str | None) -> str:
    """The words in front of a prompt that an encoder reads; empty without an instruction."""
    return f"{instruction.strip()} " if instruction and instruction.strip() else ""


def laid_out(header: str, prompt: str, field: str) -> str:
    """A prompt below its header, ready to be continued.

    Raises:
        InvalidRequest: it is empty or has a line break.
    """
    return f"{header}{_line(prompt, field)}{SEPARATOR}"


def _line(text: str, field: str) -> str:
    check_is_not_blank(text, field)
    line = text.strip()
    if len(line.splitlines()) > 1:
        raise InvalidRequest(
            f"{field} has a line break, which ends an example: keep it to one line, "
            "or lay out the prompt yourself, without instruction and examples",
            field=field,
        )
    return line


class PromptTask(ServedTask[AnyRequest, AnySection]):
    """A task whose requests hold texts and, for some models, the images of places in them."""

    def places(self, model: LoadedModel) -> ImagePlaces | None:
        """How a model's prompts hold images; None where they hold none."""
        found: ImagePlaces | None = getattr(self.section_of(model), IMAGES, None)
        return found

    def accepts(self, request: AnyRequest, model: LoadedModel) -> bool:
        """Images are for models whose prompts hold them."""
        return not getattr(request, IMAGES, None) or self.places(model) is not None

    def refusal(self, request: AnyRequest, models: Sequence[LoadedModel]) -> InvalidRequest:
        names = ", ".join(model.name for model in models)
        fields = " and ".join(self.declaration.item_fields)
        return InvalidRequest(f"{fields} of {names} hold no images: leave images out", field=IMAGES)

    def inputs(self, model: LoadedModel) -> Sequence[str]:
        return self.declaration.item_fields + ((IMAGES,) if self.places(model) else ())

    def details(self, model: LoadedModel) -> Mapping[str, str]:
        places = self.places(model)
        return {} if places is None else {"image_place": places.place}

    def canary(self, model: LoadedModel) -> Iterable[Call]:
        return [generator_canary(model)]

    def limits(self, model: LoadedModel) -> Mapping[str, int]:
        taken = {"max_prompt_images": model.task_limits.max_prompt_images}
        return {
            "max_best_of": model.task_limits.max_best_of,
            "max_stop_sequences": model.task_limits.max_stop_sequences,
            **(taken if self.places(model) else {}),
        }


def _reads_images(manifest: Manifest) -> bool:
    places = (section.get(IMAGES) for section in manifest.tasks.values())
    is_complete = manifest.text_images is not None and manifest.image is not None
    return is_complete or not any(places)


IMAGE_PROMPTS = Need(
    "graphs that read images of prompts, where its section has them", _reads_images
)


@dataclass(frozen=True)
class PromptPixels:
    """The images of a request, shared out to its prompts in the order of their places.

    Attributes:
        shared: Those of the text in front of every prompt.
        own: Those of each prompt.
    """

    shared: Sequence[PreparedImage | ServingError]
    own: Sequence[Sequence[PreparedImage | ServingError]]

    @classmethod
    def of(
        cls,
        places: ImagePlaces,
        header: str,
        prompts: Sequence[str],
        images: Sequence[PreparedImage | ServingError],
    ) -> PromptPixels:
        """Images in order: those of the header, then those of each prompt.

        Raises:
            InvalidRequest: not as many images as places.
        """
        first, counts = places.count(header), [places.count(prompt) for prompt in prompts]
        if first + sum(counts) != len(images):
            having = " + ".join(map(str, [first, *counts] if header else counts))
            raise InvalidRequest(
                f"the text has {having} {places.place} places, images holds {len(images)}: "
                "give one image for each place",
                field=IMAGES,
            )
        starts = np.cumsum([first, *counts])
        own = [images[start : start + size] for start, size in zip(starts, counts, strict=False)]
        return cls(images[:first], own)

    def of_prompt(self, index: int, limits: TaskLimits, field: str) -> list[PreparedImage]:
        """The images of a prompt in their order.

        Args:
            field: The request's field of the prompt.

        Raises:
            InvalidRequest: more images than a prompt may hold.
            ServingError: one of them cannot be read.
        """
        images = [*self.shared, *self.own[index]]
        if len(images) > limits.max_prompt_images:
            raise InvalidRequest(
                f"{field} holds {len(images)} images with those of its examples, at most "
                f"{limits.max_prompt_images} are taken: leave some out",
                field=field,
            )
        return seen_together([unwrap(image) for image in images])


def held_images(images: Sequence[PreparedImage]) -> dict[str, Array]:
    """Images of a prompt as inputs of its call, all tiles behind one another; {} without any.

    Images of several sizes are padded to the largest sides.

    Raises:
        InvalidRequest: that takes too much memory: some are very high and others very wide.
    """
    if not images:
        return {}
    read = [each for image in images for each in image.images]
    sizes = np.array([each.shape[:2] for each in read], np.int64)  # (I, 2)
    if (sizes == sizes[0]).all():
        return {PIXELS: np.stack(read)}
    height, width = sizes.max(axis=0).tolist()
    if len(read) * height * width > PILLOW_MAX_PIXELS:
        raise InvalidRequest(
            f"{len(read)} images of a prompt have shapes too different to be read together: at "
            f"{width}x{height} each they have more than {PILLOW_MAX_PIXELS} pixels, crop them",
            field=IMAGES,
        )
    padded = np.zeros((len(read), height, width, 3), np.uint8)
    for place, (pixels, (height, width)) in enumerate(zip(read, sizes.tolist(), strict=True)):
        padded[place, :height, :width] = pixels
    return {PIXELS: padded, IMAGE_SIZES: sizes}


def image_inputs(
    images: Sequence[PreparedImage], field: str, model: LoadedModel
) -> Mapping[str, Array]:
    """The images of one text, as inputs of its call.

    Raises:
        InvalidRequest: other than one image, where an encoder reads just one.
    """
    if model.manifest.source_image is None or model.manifest.takes_image_lists:
        return held_images(images)
    if len(images) != 1:
        raise InvalidRequest(
            f"{field} holds {len(images)} images: {model.name} reads one", field=field
        )
    return {PIXELS: images[0].pixels}
