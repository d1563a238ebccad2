"""Outlines and textures of the scene world, as formulas over a unit square.

Implicit formulas need no drawing library: evaluating one on a fine grid and averaging gives an
anti-aliased picture, and a test can check whether a point lies inside.

Every function takes two float arrays of one shape: x to the right and y upwards, in units of the
object's radius. It returns a bool array of that shape: inside the outline, or on the second tone.
"""

from collections.abc import Callable
from math import cos, pi, sin
from typing import Any

import numpy as np
from numpy.typing import NDArray

Region = Callable[[NDArray[Any], NDArray[Any]], NDArray[Any]]

_STAR_POINTS = 5
_STAR_INNER_RADIUS = 0.45
_SQRT3 = 3**0.5


def circle(x: NDArray[Any], y: NDArray[Any]) -> NDArray[Any]:
    """A disc."""
    return x**2 + y**2 <= 0.9**2


def square(x: NDArray[Any], y: NDArray[Any]) -> NDArray[Any]:
    """A square, upright."""
    return np.maximum(np.abs(x), np.abs(y)) <= 0.8


def triangle(x: NDArray[Any], y: NDArray[Any]) -> NDArray[Any]:
    """An equilateral triangle, tip up."""
    return (y >= -0.75) & (y <= 0.95 - _SQRT3 * np.abs(x))


def diamond(x: NDArray[Any], y: NDArray[Any]) -> NDArray[Any]:
    """A square on its tip, pressed from the sides."""
    return np.abs(x) / 0.7 + np.abs(y) <= 1.0


def cross(x: NDArray[Any], y: NDArray[Any]) -> NDArray[Any]:
    """A cross of two equal bars."""
    near, far = np.minimum(np.abs(x), np.abs(y)), np.maximum(np.abs(x), np.abs(y))
    return (near <= 0.33) & (far <= 0.95)


def ring(x: NDArray[Any], y: NDArray[Any]) -> NDArray[Any]:
    """A disc with a round hole."""
    distance = x**2 + y**2
    return (distance >= 0.45**2) & (distance <= 0.95**2)


def crescent(x: NDArray[Any], y: NDArray[Any]) -> NDArray[Any]:
    """A moon, open to the right."""
    return (x**2 + y**2 <= 0.95**2) & ((x - 0.5) ** 2 + y**2 >= 0.75**2)


def heart(x: NDArray[Any], y: NDArray[Any]) -> NDArray[Any]:
    """The sextic heart curve (x² + y² - 1)³ = x²y³, scaled into the unit square."""
    u, v = 1.2 * x, 1.2 * y + 0.1
    disc = u * u + v * v - 1
    return disc * disc * disc <= u * u * v * v * v  # numpy's cubes by ** are a hundred times slower


def star(x: NDArray[Any], y: NDArray[Any]) -> NDArray[Any]:
    """A five-pointed star: one straight edge, folded ten times around the centre."""
    sector = pi / _STAR_POINTS
    radius = np.hypot(x, y)
    angle = np.abs((np.arctan2(x, y) + sector) % (2 * sector) - sector)  # 0 at a tip
    tip = 1.0
    inner_x, inner_y = _STAR_INNER_RADIUS * cos(sector), _STAR_INNER_RADIUS * sin(sector)
    u, v = radius * np.cos(angle), radius * np.sin(angle)
    return (tip - u) * inner_y >= v * (tip - inner_x)


def plain(x: NDArray[Any], y: NDArray[Any]) -> NDArray[Any]:
    """One tone all over."""
    return np.zeros(np.broadcast(x, y).shape, dtype=bool)


def striped(x: NDArray[Any], y: NDArray[Any]) -> NDArray[Any]:
    """Stripes along y, both tones equally wide."""
    return _is_even(x / 0.3)


def checked(x: NDArray[Any], y: NDArray[Any]) -> NDArray[Any]:
    """A chess board."""
    return _is_even(x / 0.45) == _is_even(y / 0.45)


def dotted(x: NDArray[Any], y: NDArray[Any]) -> NDArray[Any]:
    """Round dots of the second tone on a square grid."""
    spacing = 0.64
    u, v = (x + spacing / 2) % spacing - spacing / 2, (y + spacing / 2) % spacing - spacing / 2
    return u**2 + v**2 <= 0.2**2


def _is_even(x: NDArray[Any]) -> NDArray[Any]:
    return np.floor(x).astype(np.int32) & 1 == 0


OUTLINES: dict[str, Region] = {
    region.__name__: region
    for region in (circle, square, triangle, star, cross, ring, heart, diamond, crescent)
}
TEXTURES: dict[str, Region] = {
    region.__name__: region for region in (plain, striped, dotted, checked)
}
