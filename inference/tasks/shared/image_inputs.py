"""Images of a request, as base64 (JSON) or as bytes (multipart, gRPC), to a model's pixels."""

from __future__ import annotations

from collections.abc import Sequence

from inference.errors import InvalidRequest, ServingError, UnsupportedImage
from inference.processing.image import pixel_count
from inference.processing.prepared_image import PreparedImage, read_image
from inference.tasks.shared.loaded_model import LoadedModel, TaskLimits
from inference.tasks.shared.model_calls import attempt_each
from triptych import images as wire_images
from triptych.task import IMAGES

ImageInput = str | bytes | PreparedImage | ServingError
"""Base64 or a data URI, a file's bytes, an image at the model's size, or why there is none."""


def measure_images(
    images: Sequence[ImageInput], limits: TaskLimits
) -> tuple[Sequence[ImageInput], Sequence[int]]:
    """Images as bytes, or why there are none, and the pixels of each that are to be decoded.

    Too many images are left as they are: `prepare_images` refuses them.
    """
    if len(images) > limits.max_client_batch_size:
        return images, [0] * len(images)
    files = [_read(image) for image in images]
    return files, [
        pixel_count(file, limits.image) if isinstance(file, bytes) else 0 for file in files
    ]


def prepare_images(
    images: Sequence[ImageInput], model: LoadedModel, header: str | None = None
) -> tuple[PreparedImage | ServingError, ...]:
    """Each image at the model's size with its own size, or why there is none.

    Args:
        header: Drawn above each of them.

    Raises:
        InvalidRequest: too many images.
        ServingError: none could be read; the first one's error.
    """
    model.task_limits.check_batch(len(images), IMAGES)

    def prepare(index: int, image: ImageInput) -> PreparedImage:
        try:
            if isinstance(image, PreparedImage):
                return image
            return read_image(_bytes(image), model.task_limits.image, model.image, header)
        except ServingError as error:
            error.field = f"{IMAGES}.{index}"
            raise

    return attempt_each(images, prepare)


def _read(image: ImageInput) -> ImageInput:
    try:
        return image if isinstance(image, PreparedImage) else _bytes(image)
    except ServingError as error:
        return error


def _bytes(image: str | bytes | ServingError) -> bytes:
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
