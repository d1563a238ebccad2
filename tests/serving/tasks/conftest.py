"""Small models for tasks: words are tokens, pictures have four pixels a side."""

import io
from collections.abc import Sequence

import numpy as np
import pytest
from PIL import Image

from serving.bundle import ImageSpec, Limits, Manifest, SourceInfo, TokenizerSpec
from serving.generation import Generation
from serving.processing.detokenizer import Detokenizer
from serving.tasks.model import LoadedModel


class WordTokenizer:
    """A word is a token; 0 pads, 1 ends, 2 starts what `add_special_tokens` asks for."""

    def __init__(self) -> None:
        self.words = ["<pad>", "</s>", "<s>"]

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        for word in text.split():
            if word not in self.words:
                self.words.append(word)
        ids = [self.words.index(word) for word in text.split()]
        return [*ids, 1] if add_special_tokens else ids

    def decode(self, ids: Sequence[int]) -> str:
        return " ".join(self.words[number] for number in ids if number > 2)

    def detokenizer(self) -> Detokenizer:
        return Detokenizer(self.decode)

    def pieces(self, ids: Sequence[int], *, of_source: bool = False) -> list[str]:
        return [self.words[number] for number in ids]


def manifest(task: str, **fields: object) -> Manifest:
    defaults: dict[str, object] = {
        "name": f"tiny-{task}",
        "version": 3,
        "architecture": "none",
        "precision": "fp32",
        "tasks": (task,),
        "source": SourceInfo(name="tiny", content_hash="0"),
        "parts": {"generate": f"tiny-{task}"},
        "graphs": {},
        "generation": Generation(pad_token_id=0, max_new_tokens=20, num_beams=2),
        "limits": Limits(max_input_tokens=12, max_total_tokens=16),
        "tokenizer": TokenizerSpec(kind="tokenizers", pad_token_id=0, files={}),
    }
    return Manifest(**{**defaults, **fields})


IMAGE = ImageSpec(
    resize="exact", size=(4, 4), resample=2, mean=(0, 0, 0), std=(1, 1, 1), rescale=1 / 255
)


@pytest.fixture
def translator() -> LoadedModel:
    return LoadedModel(manifest("translate", languages=(("es", "en"),)), WordTokenizer())


@pytest.fixture
def captioner() -> LoadedModel:
    return LoadedModel(manifest("caption", image=IMAGE), WordTokenizer())


@pytest.fixture
def classifier() -> LoadedModel:
    parts = {"image": "tiny-zero-shot", "text": "tiny-zero-shot-text"}
    fields = manifest("zero-shot", image=IMAGE, parts=parts, logit_scale=10.0, generation=None)
    return LoadedModel(fields, WordTokenizer())


def picture(colour: str, kind: str = "PNG") -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (6, 5), colour).save(buffer, kind)
    return buffer.getvalue()


def embedded(array: np.ndarray) -> np.ndarray:
    """Rows as unit vectors, float32."""
    return (array / np.linalg.norm(array, axis=1, keepdims=True)).astype(np.float32)
