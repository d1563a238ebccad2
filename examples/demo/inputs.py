"""What the demo sends; figures and tests send the same."""

from pathlib import Path

PICTURES = Path(__file__).parent / "pictures"
LABELS = [
    "large blue heart",
    "large red heart",
    "large red star",
    "large red striped heart",
    "small red heart",
]
CAPTIONS = {
    "scene-1.png": "a small yellow checked square above a small white checked cross",
    "scene-3.png": "a large yellow checked crescent above a small purple checked diamond",
    "scene-4.png": "a large red heart",
}
CAPTIONERS = ("example-captioner", "example-show-attend-tell")
AGREEMENT = "The agreement on the European Economic Area was signed in August 1992."
BINDINGS = [("dovfen", "murgav"), ("jodsax", "jodtek"), ("pofgip", "fimmig"), ("sovgav", "gimjem")]
CONVERSATIONS = (
    ("", "My name is Torsten. My car is red.", "What color is my car?"),
    ("Answer in Spanish.", "I live in London.", "Where do I live?"),
)
"""A system message, or none, and what the user says."""
QUESTIONS = ("What colour is the upper shape?", "Which texture has the cross?")
"""About `scene-1.png`, one after the other."""
