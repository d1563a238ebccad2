"""Scenes as small pictures: anti-aliased, jittered, lit, noisy and JPEG-compressed."""

from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from math import cos, pi, sin
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from examples.scenes.scene import OUTLINES, TEXTURES, Scene, Thing

SIDE = 64  # pixels
_SUPERSAMPLE = 3  # samples a pixel, along each axis
RADIUS = {"small": (7.6, 8.8), "large": (12.6, 14.6)}  # pixels, least and greatest
_MARGIN = 1.0  # pixels between a thing and the border
_RGB = {
    "red": (214, 36, 42),
    "orange": (245, 134, 28),
    "yellow": (246, 216, 48),
    "green": (44, 158, 70),
    "blue": (40, 86, 206),
    "purple": (134, 54, 164),
    "white": (240, 240, 238),
    "black": (26, 26, 28),
    "gray": (128, 130, 130),
    "cyan": (96, 208, 224),
}
_LUMA = np.array([0.299, 0.587, 0.114])


@dataclass(frozen=True)
class Placement:
    """Where a thing is drawn: centre from the upper left corner and radius, in pixels."""

    x: float
    y: float
    radius: float


def render(scene: Scene, seed: int) -> Image.Image:
    """A picture of the scene, RGB, `SIDE` pixels square; the seed decides all the jitter."""
    rng = np.random.default_rng(seed)
    return draw(scene.things, _place(scene, rng), scene.background, rng)


def draw(
    things: Sequence[Thing], places: Sequence[Placement], background: str, rng: np.random.Generator
) -> Image.Image:
    """A picture of the things at their places, later ones above earlier ones."""
    pixels = np.empty((SIDE, SIDE, 3), np.float32)
    pixels[:] = _jittered_colour(background, rng)
    for thing, place in zip(things, places, strict=True):
        _paint(pixels, thing, place, rng)
    _light(pixels, rng)
    pixels += rng.uniform(1, 6) * rng.standard_normal(pixels.shape, np.float32)
    picture = Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
    return _compressed(picture, quality=int(rng.integers(75, 96)))


def placements(scene: Scene, seed: int) -> list[Placement]:
    """Where `render` puts each thing of the scene for that seed."""
    return _place(scene, np.random.default_rng(seed))


def _place(scene: Scene, rng: np.random.Generator) -> list[Placement]:
    radii = [rng.uniform(*RADIUS[thing.size]) for thing in scene.things]
    if len(radii) == 1:
        x, y = rng.uniform(radii[0] + _MARGIN, SIDE - radii[0] - _MARGIN, 2)
        return [Placement(x, y, radii[0])]
    low, high = (0, 1) if scene.relation in ("left", "above") else (1, 0)
    along = [0.0, 0.0]  # the axis of the relation: left to right, or top to bottom
    along[low] = radii[low] + _MARGIN
    along[high] = SIDE - radii[high] - _MARGIN
    slack = along[high] - along[low] - sum(radii) - _MARGIN
    before, after = rng.dirichlet((1, 1, 1))[:2] * max(slack, 0)
    along[low] += before
    along[high] -= after
    middle = SIDE / 2 + rng.uniform(-6, 6)
    across = [middle + rng.uniform(-6, 6) for _ in radii]
    across = [
        float(np.clip(at, radius + _MARGIN, SIDE - radius - _MARGIN))
        for at, radius in zip(across, radii, strict=True)
    ]
    is_horizontal = scene.relation in ("left", "right")
    x, y = (along, across) if is_horizontal else (across, along)
    return [Placement(*place) for place in zip(x, y, radii, strict=True)]


def _paint(pixels: NDArray[Any], thing: Thing, at: Placement, rng: np.random.Generator) -> None:
    """Blends the thing into `pixels` (SIDE, SIDE, 3), within its bounding box."""
    left, top = max(int(at.x - at.radius), 0), max(int(at.y - at.radius), 0)
    right, bottom = (min(int(centre + at.radius) + 2, SIDE) for centre in (at.x, at.y))
    x = (_samples(left, right) - at.x) / at.radius
    y = (at.y - _samples(top, bottom)) / at.radius
    x, y = np.meshgrid(x, y)
    inside = OUTLINES[thing.shape](*_turned(x, y, rng.uniform(-0.14, 0.14)))
    turn = rng.uniform(0, pi) if thing.texture == "striped" else rng.uniform(-0.2, 0.2)
    shift_x, shift_y = rng.uniform(0, 1, 2)
    u, v = _turned(x, y, turn)
    is_second_tone = TEXTURES[thing.texture](u + shift_x, v + shift_y)

    first_tone = _jittered_colour(thing.colour, rng)
    second_tone = _contrasting(first_tone)
    cover = _averaged(inside)[..., None]
    second = _averaged(inside & is_second_tone)[..., None]
    box = pixels[top:bottom, left:right]
    box *= 1 - cover
    box += (cover - second) * first_tone + second * second_tone


def _samples(start: int, stop: int) -> NDArray[Any]:
    """Positions of the sub-samples of pixels `start` to `stop`, in pixels."""
    samples = np.arange(start * _SUPERSAMPLE, stop * _SUPERSAMPLE, dtype=np.float32)
    return (samples + 0.5) / _SUPERSAMPLE


def _averaged(mask: NDArray[Any]) -> NDArray[Any]:
    """Share of each pixel's sub-samples that are set: (3h, 3w) bool to (h, w)."""
    height, width = (extent // _SUPERSAMPLE for extent in mask.shape)
    return mask.reshape(height, _SUPERSAMPLE, width, _SUPERSAMPLE).mean((1, 3))


def _turned(x: NDArray[Any], y: NDArray[Any], angle: float) -> tuple[NDArray[Any], NDArray[Any]]:
    cosine, sine = cos(angle), sin(angle)
    return cosine * x - sine * y, sine * x + cosine * y


def _jittered_colour(name: str, rng: np.random.Generator) -> NDArray[Any]:
    """The colour in RGB with jitter: brightness by up to 10 %, each channel by up to 10."""
    return np.clip(np.array(_RGB[name]) * rng.uniform(0.9, 1.08) + rng.uniform(-10, 10, 3), 0, 255)


def _contrasting(colour: NDArray[Any]) -> NDArray[Any]:
    """The second tone of a texture: a dark shade of a bright colour, a light tint of a dark one."""
    if colour @ _LUMA > 95:
        return colour * 0.4
    return colour * 0.4 + 255 * 0.6


def _light(pixels: NDArray[Any], rng: np.random.Generator) -> None:
    """Multiplies by random lighting: overall brightness, and a gradient across the picture."""
    slope_x, slope_y = rng.uniform(-0.1, 0.1, 2)
    at = np.linspace(-1, 1, SIDE)
    light = rng.uniform(0.88, 1.08) + slope_x * at[None, :] + slope_y * at[:, None]
    pixels *= light[..., None]


def _compressed(picture: Image.Image, quality: int) -> Image.Image:
    buffer = BytesIO()
    picture.save(buffer, "JPEG", quality=quality)
    return Image.open(buffer).convert("RGB")
