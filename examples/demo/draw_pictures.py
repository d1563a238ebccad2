"""Writes the few pictures that the demo, the README and the tests send: `python -m` this module."""

from pathlib import Path

from examples.scenes.scene import caption
from examples.scenes.scores import heldout_pictures

FOLDER = Path(__file__).parent / "pictures"
_SEED = 2026
_ONE_THING, _TWO_THINGS = 2, 3  # how many of each

_README = """\
# Demo pictures

Held-out scenes: each has a combination of attributes that training never showed. The first ones of
seed {seed}, not chosen by what a model makes of them. Written by `python -m {module}`.

| picture | what it shows |
|---|---|
{rows}
"""


def main() -> None:
    """Writes the pictures, the last one as JPEG, and a page that describes them."""
    drawn = list(heldout_pictures(50, _SEED))
    ones = [pair for pair in drawn if pair[0].second is None][:_ONE_THING]
    twos = [pair for pair in drawn if pair[0].second is not None][:_TWO_THINGS]
    FOLDER.mkdir(exist_ok=True)
    rows = []
    for number, (scene, picture) in enumerate([*twos, *ones], start=1):
        is_last = number == _ONE_THING + _TWO_THINGS
        path = FOLDER / f"scene-{number}.{'jpg' if is_last else 'png'}"
        picture.save(path, quality=95)
        rows.append(f"| `{path.name}` | {caption(scene)} |")
    page = _README.format(seed=_SEED, module="examples.demo.draw_pictures", rows="\n".join(rows))
    (FOLDER / "README.md").write_text(page)


if __name__ == "__main__":
    main()
