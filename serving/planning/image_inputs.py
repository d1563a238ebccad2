"""Images of a request, as base64 (JSON) or as bytes (multipart, gRPC), to a model's pixels."""

from __future__ import annotations

from collections.abc import Sequence

from serving.errors import InvalidRequest, ServingError, UnsupportedImage
from serving.planning.items import attempt_each
from serving.planning.limits import TaskLimits
from serving.planning.loaded_model import LoadedModel
from serving.processing.image import Pixels, decode_image, pixel_count, prepare_image
from triptych import images as wire_images
from triptych.task import IMAGES

ImageInput = str | bytes | ServingError
"""Base64 or a data URI, an image file's bytes, or why an image could not be fetched."""


def measured(images: Sequence[ImageInput], limits: TaskLimits) -> tuple[Sequence[ImageInput], int]:
    """Images as bytes, or why there are none, and the pixels that are to be decoded.

    Too many images are left as they are: `prepare_images` refuses them.
    """
    if len(images) > limits.max_client_batch_size:
        return images, 0
    files = [_read(image) for image in images]
    counts = (pixel_count(file, limits.image) for file in files if isinstance(file, bytes))
    return files, sum(counts)


def prepare_images(
    images: Sequence[ImageInput], model: LoadedModel, limits: TaskLimits
) -> tuple[Pixels | ServingError, ...]:
    """Each image's pixels (height, width, 3) at the model's size, or why there are none.

    Raises:
        InvalidRequest: too many images.
        ServingError: none could be read; the first one's error.
    """
    limits.check_batch(len(images), IMAGES)

    def prepared(index: int, image: ImageInput) -> Pixels:
        try:
            return prepare_image(decode_image(_bytes(image), limits.image), model.image)
        except ServingError as error:
            error.field = f"{IMAGES}.{index}"
            raise

    return attempt_each(images, prepared)


def _read(image: ImageInput) -> bytes | ServingError:
    try:
        return _bytes(image)
    except ServingError as error:
        return error


def _bytes(image: ImageInput) -> bytes:
    if isinstance(image, ServingError):
        raise image
    if isinstance(image, bytes):
        return image
    if image.startswith(("http://", "https://")):
        raise InvalidRequest("images are not fetched from a URL: send base64 or a data URI")
    try:
        return wire_images.decode(image)
    except ValueError as error:
        raise UnsupportedImage(f"the image is not base64 or a data URI ({error})") from None
