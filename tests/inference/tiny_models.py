"""Small models for tasks: words are tokens, images have four pixels a side."""

import re
from collections.abc import Sequence

import numpy as np
from PIL import Image

from inference.bundle.inputs import PromptImages, TokenizerSpec
from inference.bundle.manifest import Graph, Limits, Manifest, Role, Tensor
from inference.generation import Generation
from inference.processing.detokenizer import Detokenizer
from inference.processing.tokenizer import EncodedText
from inference.tasks import TASKS
from inference.tasks.shared.loaded_model import LoadedModel
from inference.tasks.shared.served_task import sections_of
from tests.inference.manifests import make_manifest, plain_recipe
from tests.pictures import encoded


class WordTokenizer:
    """A word is a token; 0 pads, 1 ends a text, 2 separates a pair. `##` begins a continuation."""

    def __init__(self) -> None:
        self.words = ["<pad>", "</s>", "<s>"]

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        for word in text.split():
            if word not in self.words:
                self.words.append(word)
        ids = [self.words.index(word) for word in text.split()]
        return [*ids, 1] if add_special_tokens else ids

    def encode_output(self, text: str) -> list[int] | None:
        return self.encode(text, add_special_tokens=False)

    def encode_text(
        self, text: str, second: str | None = None, *, with_offsets: bool = False
    ) -> EncodedText:
        first = self.encode(text, add_special_tokens=False)
        offsets = [match.span() for match in re.finditer(r"\S+", text)]
        if second is None:
            places = [*offsets, (0, 0)] if with_offsets else ()
            whole = [*first, 1]
            return EncodedText(whole, [0] * len(whole), [*[0] * len(first), None], places)
        other = self.encode(second, add_special_tokens=False)
        others = [match.span() for match in re.finditer(r"\S+", second)]
        return EncodedText(
            [*first, 2, *other, 1],
            [0] * (len(first) + 1) + [1] * (len(other) + 1),
            [*[0] * len(first), None, *[1] * len(other), None],
            [*offsets, (0, 0), *others, (0, 0)] if with_offsets else (),
        )

    def continues(self, text: str, encoded: EncodedText) -> list[bool]:
        return [self.words[number].startswith("##") for number in encoded.ids]

    def token_id(self, text: str) -> int | None:
        ids = self.encode(text, add_special_tokens=False)
        return ids[0] if len(ids) == 1 else None

    def render(self, ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        first = 3 if skip_special_tokens else 0
        return " ".join(self.words[number] for number in ids if number >= first)

    def decode(self, ids: Sequence[int]) -> str:
        return " ".join(self.words[number] for number in ids if number > 2)

    def detokenizer(self) -> Detokenizer:
        return Detokenizer(self.decode)

    def pieces(self, ids: Sequence[int], *, of_source: bool = False) -> list[str]:
        known = dict(enumerate(self.words))
        return [known.get(number, f"<{number}>") for number in ids]

    def bytes_of(self, ids: Sequence[int]) -> list[bytes]:
        return [self.words[number].encode() if number > 2 else b"" for number in ids]

    def starts(self, text: str) -> tuple[Sequence[int], Sequence[int]]:
        encoded = self.encode_text(text, with_offsets=True)
        return encoded.ids, [*(start for start, _ in encoded.offsets[:-1]), len(text)]


STEP = Graph(file="step.onnx", inputs=(), outputs=())
EMBEDDING = (Tensor(name="embedding", dtype="float32", shape=("B", 3), role=Role.EMBEDDING),)
TOWERS = {
    "image": Graph(
        file="model.onnx",
        inputs=(Tensor(name="pixels", dtype="uint8", shape=("B", 4, 4, 3), role=Role.PIXELS),),
        outputs=EMBEDDING,
    ),
    "text": Graph(
        file="model.onnx",
        inputs=(
            Tensor(name="token_ids", dtype="int64", shape=("B", "T"), role=Role.TOKENS),
            Tensor(name="lengths", dtype="int32", shape=("B",), role=Role.LENGTHS),
        ),
        outputs=EMBEDDING,
    ),
}


def manifest(task: str, section: dict[str, object] | None = None, **fields: object) -> Manifest:
    """A generator's manifest, unless `fields` give other graphs.

    Args:
        section: What the manifest holds for the task.
    """
    defaults: dict[str, object] = {
        "name": f"tiny-{task}",
        "version": 3,
        "tasks": {task: section or {}},
        "graphs": {"step": STEP},
        "generation": Generation(pad_token_id=0, max_new_tokens=20, num_beams=2),
        "limits": Limits(max_input_tokens=12, max_total_tokens=16),
        "tokenizer": TokenizerSpec(kind="tokenizers", pad_token_id=0, files={}),
    }
    return make_manifest(task=task, **{**defaults, **fields})


IMAGE = plain_recipe((4, 4), 1 / 255)


def two_towers() -> Manifest:
    """Image and text parts with embeddings in one space."""
    return manifest(
        "zero-shot",
        {"logit_scale": 10.0},
        image=IMAGE,
        parts={"image": "tiny-zero-shot", "text": "tiny-zero-shot-text"},
        graphs=TOWERS,
        generation=None,
    )


def detector() -> Manifest:
    """Two regions of an image, and texts in the space of their vectors."""
    found = (
        ("boxes", (4,), Role.BOXES),
        ("regions", (3,), Role.REGIONS),
        ("biases", (), Role.REGION_BIASES),
    )
    outputs = tuple(
        Tensor(name=name, dtype="float32", shape=("B", 2, *last), role=role)
        for name, last, role in found
    )
    towers = two_towers()
    image = TOWERS["image"].model_copy(update={"outputs": outputs})
    return towers.model_copy(
        update={
            "name": "tiny-detect",
            "tasks": {"detect": {}},
            "parts": {"image": "tiny-detect", "text": "tiny-detect-text"},
            "graphs": {**TOWERS, "image": image},
        }
    )


def box_writer() -> LoadedModel:
    """A generator whose answers have boxes, as words."""
    tokenizer = WordTokenizer()
    tokenizer.encode("<image>")
    sentences = {"<all>": "find all", "<some>": "find {input} here"}
    images = {"place": "<image>", "is_leading": True, "sentences": sentences}
    section = {"images": images, "prompt": "<all>", "labelled": "<some>", "ignored": ["it"]}
    tokens = Tensor(name="s", dtype="int64", shape=("B", "S"), role=Role.SOURCE_TOKENS)
    described = manifest(
        "detect",
        section,
        image=IMAGE,
        graphs={"admit": Graph(file="admit.onnx", inputs=(tokens,), outputs=()), "step": STEP},
        source_image=PromptImages(positions=2, token_id=3, tokens=2),
    )
    return served(described, tokenizer)


def segmenter() -> Manifest:
    """Masks of 2 x 3 pixels, and texts in the space of their conditions."""
    towers = two_towers()
    conditions = Tensor(name="texts", dtype="float32", shape=("B", "K", 3), role=Role.CONDITIONS)
    masks = Tensor(name="masks", dtype="float32", shape=("B", "K", 2, 3), role=Role.MASKS)
    image = TOWERS["image"]
    image = image.model_copy(update={"inputs": (*image.inputs, conditions), "outputs": (masks,)})
    return towers.model_copy(
        update={
            "name": "tiny-segment",
            "tasks": {"segment": {}},
            "parts": {"image": "tiny-segment", "text": "tiny-segment-text"},
            "graphs": {**TOWERS, "image": image},
        }
    )


def served(described: Manifest, tokenizer: WordTokenizer | None = None) -> LoadedModel:
    """A manifest loaded without files."""
    return LoadedModel(described, sections_of(described, TASKS), tokenizer or WordTokenizer())


def image_file(colour: str, kind: str = "PNG") -> bytes:
    return encoded(Image.new("RGB", (6, 5), colour), kind)


def embedded(array: np.ndarray) -> np.ndarray:
    """Rows as unit vectors, float32."""
    return (array / np.linalg.norm(array, axis=1, keepdims=True)).astype(np.float32)
