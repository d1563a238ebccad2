"""Outlines and textures of the scene world, as formulas over a unit square.

Implicit formulas need no drawing library: evaluating one on a fine grid and averaging gives an
anti-aliased picture, and a test can ask whether a point lies inside.

Every function takes two float arrays of one shape: x to the right and y upwards, in units of the
object's radius. It returns a bool array of that shape: inside the outline, or on the second tone.
"""

from collections.abc import Callable
from math import pi

import numpy as np

Region = Callable[[np.ndarray, np.ndarray], np.ndarray]

_STAR_POINTS = 5
_STAR_INNER_RADIUS = 0.45
_SQRT3 = 3**0.5


def circle(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return x**2 + y**2 <= 0.9**2


def square(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.maximum(np.abs(x), np.abs(y)) <= 0.8


def triangle(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return (y >= -0.75) & (y <= 0.95 - _SQRT3 * np.abs(x))


def diamond(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.abs(x) / 0.7 + np.abs(y) <= 1.0


def cross(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    near, far = np.minimum(np.abs(x), np.abs(y)), np.maximum(np.abs(x), np.abs(y))
    return (near <= 0.33) & (far <= 0.95)


def ring(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    distance = x**2 + y**2
    return (distance >= 0.45**2) & (distance <= 0.95**2)


def crescent(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return (x**2 + y**2 <= 0.95**2) & ((x - 0.5) ** 2 + y**2 >= 0.75**2)


def heart(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """(x² + y² - 1)³ <= x²y³, the sextic heart curve, scaled into the unit square."""
    u, v = 1.2 * x, 1.2 * y + 0.1
    return (u**2 + v**2 - 1) ** 3 <= u**2 * v**3


def star(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """A five-pointed star: one straight edge, folded ten times around the centre."""
    sector = pi / _STAR_POINTS
    radius = np.hypot(x, y)
    angle = np.abs((np.arctan2(x, y) + sector) % (2 * sector) - sector)  # 0 at a tip
    tip = 1.0
    inner_x = _STAR_INNER_RADIUS * np.cos(sector)
    inner_y = _STAR_INNER_RADIUS * np.sin(sector)
    u, v = radius * np.cos(angle), radius * np.sin(angle)
    return (tip - u) * inner_y >= v * (tip - inner_x)


def plain(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.zeros(np.broadcast(x, y).shape, dtype=bool)


def striped(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.floor(x / 0.3) % 2 == 0


def checked(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return (np.floor(x / 0.45) + np.floor(y / 0.45)) % 2 == 0


def dotted(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    spacing = 0.64
    u, v = (x + spacing / 2) % spacing - spacing / 2, (y + spacing / 2) % spacing - spacing / 2
    return u**2 + v**2 <= 0.2**2


OUTLINES: dict[str, Region] = {
    region.__name__: region
    for region in (circle, square, triangle, star, cross, ring, heart, diamond, crescent)
}
TEXTURES: dict[str, Region] = {
    region.__name__: region for region in (plain, striped, dotted, checked)
}
