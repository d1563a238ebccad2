"""What is said about a scene: the one canonical caption, and labels for zero-shot choices."""

from export.examples.scenes import Scene, Thing

_RELATION_WORDS = {
    "left": "to the left of",
    "right": "to the right of",
    "above": "above",
    "below": "below",
}


def caption(scene: Scene) -> str:
    """The canonical caption, such as "a large red circle above a small blue ring on a gray
    background"; two scenes share it only when they are the same scene."""
    return f"a {label(scene.canonical())}"


def label(scene: Scene) -> str:
    """The scene as described, without its first article: it goes into "a photo of a {}"."""
    words = thing_words(scene.first)
    if scene.second is not None and scene.relation is not None:
        words += f" {_RELATION_WORDS[scene.relation]} a {thing_words(scene.second)}"
    return f"{words} on a {scene.background} background"


def thing_words(thing: Thing) -> str:
    """Size, colour, texture (plain goes unsaid) and shape."""
    texture = "" if thing.texture == "plain" else f"{thing.texture} "
    return f"{thing.size} {thing.colour} {texture}{thing.shape}"
