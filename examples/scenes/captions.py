"""A scene in words: its one canonical caption, and labels for zero-shot classification."""

from dataclasses import dataclass

from examples.scenes.scene import Scene, Thing

RELATION_WORDS = {
    "left": "to the left of",
    "right": "to the right of",
    "above": "above",
    "below": "below",
}


@dataclass(frozen=True)
class Detail:
    """Which words a label includes. Shape and texture are always included: no word means plain."""

    has_sizes: bool = True
    has_colours: bool = True
    has_background: bool = True


FULL = Detail()


def caption(scene: Scene) -> str:
    """The canonical caption of the scene, the same from whichever thing it is described.

    Such as "a large red circle above a small blue striped ring on a gray background".
    """
    return f"a {label(scene.canonical())}"


def label(scene: Scene, detail: Detail = FULL) -> str:
    """The scene as described, without its first article: it goes into "a photo of a {}"."""
    words = _thing_words(scene.first, detail)
    if scene.second is not None and scene.relation is not None:
        second = _thing_words(scene.second, detail)
        words += f" {RELATION_WORDS[scene.relation]} {article(second)} {second}"
    return words + (f" on a {scene.background} background" if detail.has_background else "")


def _thing_words(thing: Thing, detail: Detail) -> str:
    words = [
        thing.size if detail.has_sizes else "",
        thing.colour if detail.has_colours else "",
        "" if thing.texture == "plain" else thing.texture,
        thing.shape,
    ]
    return " ".join(word for word in words if word)


def article(words: str) -> str:
    """The indefinite article of these words."""
    return "an" if words[0] in "aeiou" else "a"
