"""Full-size encoders with random weights: their checkpoints, inputs, and bundles in each precision.

Weights do not matter for speed, shapes do. Everything is made once, in a cache folder.

The gateway caches embeddings of texts, so a text that comes again would measure the cache.
"""

from __future__ import annotations

import io
import json
import random
import struct
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from inference.bundle.manifest import Bundle
from inference.bundle.reader import newest_bundle

Inputs = NDArray[Any] | list[bytes]
"""Token ids (batch, tokens), prepared images (batch, 224, 224, 3) uint8, or JPEG files."""
Kind = Literal["text", "pixels", "jpeg"]
VOCABULARY = 30_522
FIRST_WORD = 1000
"""Token ids from here on are words, `w1000` and so on; each is one token."""
OPENING, CLOSING = 2, 3
"""Token ids that the tokenizer puts around each text."""
PHOTO = (480, 640)
"""Rows and columns of the JPEG files that image encoders are given."""


@dataclass(frozen=True)
class Encoder:
    """One shape.

    Attributes:
        model: Class of `transformers`.
        fields: Of its configuration, where they differ from the class's defaults.
        lengths: Tokens of the texts that it is measured with; none for image encoders.
    """

    model: str
    fields: dict[str, Any]
    lengths: tuple[int, ...] = ()


MODELS = {
    "bert-base": Encoder("BertModel", {}, (16, 128, 512)),
    "minilm-l6": Encoder(
        "BertModel",
        {"hidden_size": 384, "num_hidden_layers": 6, "intermediate_size": 1536},
        (16, 128),
    ),
    "vit-b16": Encoder("ViTForImageClassification", {"num_labels": 1000}),
    "clip-b32": Encoder("CLIPModel", {}),
}


@dataclass(frozen=True)
class Work:
    """One batch.

    Attributes:
        kind: `text`: token ids of one length; `pixels`: prepared images; `jpeg`: image files.
        tokens: Length of texts.
    """

    kind: Kind
    batch: int
    tokens: int = 0
    seed: int = 0

    def inputs(self) -> Inputs:
        """What an engine is given; making it is not measured."""
        random = np.random.default_rng(self.seed)
        if self.kind == "text":
            ids = random.integers(FIRST_WORD, VOCABULARY, (self.batch, self.tokens))
            ids[:, 0], ids[:, -1] = OPENING, CLOSING
            return ids
        if self.kind == "pixels":
            return random.integers(0, 256, (self.batch, 224, 224, 3), dtype=np.uint8)
        return [photo(random) for _ in range(self.batch)]


def photo(random: np.random.Generator) -> bytes:
    """A JPEG file of smooth random colours, about as large as a photograph's."""
    small = random.integers(0, 256, (30, 40, 3), dtype=np.uint8)
    image = Image.fromarray(small).resize(PHOTO[::-1], Image.Resampling.BICUBIC)
    noise = random.integers(-12, 13, (*PHOTO, 3))
    noisy = np.clip(np.asarray(image, np.int16) + noise, 0, 255).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(noisy).save(file, "JPEG", quality=90)
    return file.getvalue()


def checkpoint(name: str, cache: Path) -> Path:
    """A folder in Hugging Face format, with tokenizer and image recipe."""
    folder = cache / "checkpoints" / name
    if not (folder / "config.json").is_file():
        _make(name, folder)
    return folder


def bundle(name: str, runtime: str, precision: str, cache: Path) -> Bundle:
    """The checkpoint exported by `triptych export`, alone in its repository.

    Raises:
        CalledProcessError: the export failed; its output is on the console.
    """
    repository = cache / "encoders" / f"{runtime}-{precision}" / name
    if not (repository / name).is_dir():
        command = [sys.executable, "-m", "export.pipeline.cli", str(checkpoint(name, cache))]
        command += ["--repository", str(repository), "--name", name]
        command += ["--runtime", runtime, "--precision", precision]
        subprocess.run(command, check=True, stdout=sys.stderr)
    return newest_bundle(repository, name)


def _make(name: str, folder: Path) -> None:
    import torch
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    encoder = MODELS[name]
    torch.manual_seed(0)
    kind = getattr(transformers, encoder.model)
    kind(kind.config_class(**encoder.fields)).eval().save_pretrained(folder)
    if encoder.model != "BertModel":
        recipes = {"vit-b16": transformers.ViTImageProcessor}
        recipes.get(name, transformers.CLIPImageProcessor)().save_pretrained(folder)
    size = VOCABULARY if encoder.model == "BertModel" else 49_408
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    vocabulary = {word: index for index, word in enumerate(names)}
    vocabulary |= {f"w{index}": index for index in range(len(names), size)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "eos_token": "[SEP]"}
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)
    fast.save_pretrained(folder)
    # The class's name in `transformers` before version 5, which peers may need.
    settings = folder / "tokenizer_config.json"
    written = json.loads(settings.read_text()) | {"tokenizer_class": "PreTrainedTokenizerFast"}
    settings.write_text(json.dumps(written, indent=2))


Item = str | bytes
"""A text, or a JPEG file."""
MIXED_WORDS = (5, 60)
"""Fewest and most words of texts of mixed lengths."""
PHOTOS = 32
"""Different pictures; their files differ each time in a comment."""


@dataclass(frozen=True)
class Traffic:
    """One kind of request.

    Attributes:
        tokens: Length of the texts with the tokens around them; 0 for mixed lengths; None for
            images.
    """

    tokens: int | None

    @property
    def title(self) -> str:
        """Name of the items in a table."""
        if self.tokens is None:
            return "from jpeg"
        return f"{self.tokens} tokens" if self.tokens else "{}–{} words".format(*MIXED_WORDS)

    def items(self, seed: int) -> Iterator[Item]:
        """Endless; another seed gives other items."""
        return photos(seed) if self.tokens is None else texts(self.tokens, seed)


def texts(tokens: int, seed: int) -> Iterator[str]:
    """Random words, each one token."""
    chance = random.Random(seed)
    words = [f"w{number}" for number in range(FIRST_WORD, VOCABULARY)]
    while True:
        count = tokens - 2 if tokens else chance.randint(*MIXED_WORDS)
        yield " ".join(chance.choices(words, k=count))


def photos(seed: int) -> Iterator[bytes]:
    """JPEG files; each has a comment of its own."""
    chance = np.random.default_rng(seed)
    made = [photo(chance) for _ in range(PHOTOS)]
    number = 0
    while True:
        yield add_comment(made[number % PHOTOS], f"{seed} {number}")
        number += 1


def add_comment(jpeg: bytes, comment: str) -> bytes:
    """The file with a comment segment (ITU-T T.81, B.2.4.5) behind its start marker."""
    text = comment.encode()
    return jpeg[:2] + b"\xff\xfe" + struct.pack(">H", len(text) + 2) + text + jpeg[2:]
