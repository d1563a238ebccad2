"""Pictures of a request, as base64 (JSON) or as bytes (multipart, gRPC), to a model's pixels."""

from __future__ import annotations

from collections.abc import Sequence

from serving.errors import InvalidRequest, TriptychError, UnsupportedImage
from serving.processing.image import Pixels, decode_image, prepare_image
from serving.tasks.batch import attempt_each
from serving.tasks.model import LoadedModel, TaskLimits
from triptych import images as wire_images

Picture = str | bytes
"""Base64 or a data-URI, or an image file's bytes."""


def prepare_pictures(
    pictures: Sequence[Picture], model: LoadedModel, limits: TaskLimits
) -> tuple[Pixels | TriptychError, ...]:
    """Each picture's pixels as the model takes them, or why there are none.

    Raises:
        InvalidRequest: too many pictures.
        TriptychError: none could be read; the first one's error.
    """
    limits.check_batch(len(pictures), "images")

    def prepared(index: int, picture: Picture) -> Pixels:
        try:
            image = decode_image(_bytes(picture), limits.image)
            return prepare_image(image, model.image)
        except TriptychError as error:
            error.field = f"images.{index}"
            raise

    return attempt_each(pictures, prepared)


def _bytes(picture: Picture) -> bytes:
    if isinstance(picture, bytes):
        return picture
    if picture.startswith(("http://", "https://")):
        raise InvalidRequest("addresses of pictures are not fetched: send base64 or a data-URI")
    try:
        return wire_images.decode(picture)
    except ValueError as error:
        raise UnsupportedImage(f"the image is not base64 or a data-URI ({error})") from None
