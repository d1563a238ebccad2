"""SigLIP, BLIP, TrOCR, Donut and GIT behind HTTP and gRPC against the pipeline of `transformers`.

The checkpoints are the tests' twins, with tokenizers and image recipes as such folders have them.
"""

from __future__ import annotations

import io
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    BlipImageProcessorPil,
    CLIPImageProcessorPil,
    DonutImageProcessorPil,
    PreTrainedTokenizerFast,
    SiglipImageProcessorPil,
    ViTImageProcessorPil,
)

from tests.e2e.conftest import PROGRAM, Stack, running
from tests.export.twins import make_twin
from tests.pictures import blocks
from triptych import Client
from triptych.client.grpc_client import GrpcClient

pytestmark = [pytest.mark.integration, pytest.mark.full]

SIDE = 32
SQUARE = {"height": SIDE, "width": SIDE}
WORDS = [f"{a}{b}" for a in ("red", "blue", "cat", "dog", "sun", "sea") for b in "0123456789"][:58]
VOCABULARY = ["[PAD]", "[SEP]", "[CLS]", "[UNK]", *WORDS, "[BOS]", "[X]"]
FAMILIES = {
    "siglip": ("siglip", "odd", SiglipImageProcessorPil(size=SQUARE)),
    "blip": ("blip", "odd", BlipImageProcessorPil(size=SQUARE)),
    "trocr": ("vision-encoder-decoder", "trocr", ViTImageProcessorPil(size=SQUARE)),
    "donut": (
        "vision-encoder-decoder",
        "donut",
        DonutImageProcessorPil(size={"height": SIDE, "width": 48}),
    ),
    "git": ("git", "odd", CLIPImageProcessorPil(size={"shortest_edge": SIDE}, crop_size=SQUARE)),
}
SEEDS = {"blip": 1, "trocr": 7, "git": 3}
"""Of weights with which the pictures have different captions."""
NEW_TOKENS = 10
PROMPT = "red3 cat7"
LABELS = ["blue1", "dog2 sun5 sea0", "red0"]


@dataclass(frozen=True)
class Original:
    """What `transformers` makes of a folder."""

    model: Any
    tokenizer: PreTrainedTokenizerFast
    processor: Any

    def pixels(self, image: bytes) -> torch.Tensor:
        """(1, 3, height, width)."""
        opened = Image.open(io.BytesIO(image)).convert("RGB")
        found: torch.Tensor = self.processor(opened, return_tensors="pt")["pixel_values"]
        return found

    def caption(self, name: str, image: bytes, prompt: str | None, beams: int) -> str:
        """The decoded text of `generate`, the prompt included."""
        first: dict[str, Any] = {}
        if prompt is not None:
            whole = self.tokenizer(prompt).input_ids  # [CLS] … [SEP]
            start = {"git": 62, "trocr": 1, "donut": 1}.get(name)
            ids = whole if start is None else [start, *whole[1:-1]]
            is_joined = name in ("trocr", "donut")
            first["decoder_input_ids" if is_joined else "input_ids"] = torch.tensor([ids])
        with torch.no_grad():
            tokens = self.model.generate(
                pixel_values=self.pixels(image),
                **first,
                max_new_tokens=NEW_TOKENS,
                num_beams=beams,
                do_sample=False,
            )
        return str(self.tokenizer.decode(tokens[0], skip_special_tokens=True)).strip()


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Original, Path]]:
    made = {}
    for name, (architecture, config, processor) in FAMILIES.items():
        folder = tmp_path_factory.mktemp("checkpoints") / name
        folder.mkdir()
        model = make_twin(architecture, config, folder, seed=SEEDS.get(name, 0))
        if name == "donut":
            _look_closely(model)
            model.save_pretrained(folder)
        tokenizer = _tokenizer(begins=name != "siglip")
        tokenizer.save_pretrained(folder)
        processor.save_pretrained(folder)
        made[name] = Original(model, tokenizer, processor), folder
    return made


@pytest.fixture(scope="module")
def served(
    originals: dict[str, tuple[Original, Path]], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stack]:
    home = tmp_path_factory.mktemp("image-text")
    for _, folder in originals.values():
        command = [*PROGRAM, "export", str(folder), "--repository", str(home / "repository")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    with running(home / "repository", home) as stack:
        yield stack


@pytest.mark.parametrize("name", ["blip", "trocr", "donut", "git"])
def test_served_captions_are_those_of_transformers(
    name: str, served: Stack, originals: dict[str, tuple[Original, Path]]
) -> None:
    original, _ = originals[name]
    images = [blocks(np.random.default_rng(seed)) for seed in range(3)]
    with Client(served.url) as http, GrpcClient(served.grpc_address) as grpc:
        for client in (http, grpc):
            for prompt in (None, PROMPT):
                for beams in (1, 3):
                    given = client.caption(
                        images,
                        model=name,
                        prompt=prompt,
                        num_beams=beams,
                        max_new_tokens=NEW_TOKENS,
                    )
                    wanted = [original.caption(name, image, prompt, beams) for image in images]
                    assert len(set(wanted)) == len(images)  # a caption depends on its image
                    assert [item.text for item in given.data] == wanted


def test_served_scores_of_siglip_are_those_of_transformers(
    served: Stack, originals: dict[str, tuple[Original, Path]]
) -> None:
    original, _ = originals["siglip"]
    image = blocks(np.random.default_rng(7))
    texts = original.tokenizer(LABELS, padding="max_length", max_length=12, return_tensors="pt")
    with torch.no_grad():
        output = original.model(texts.input_ids, original.pixels(image))
    wanted = dict(zip(LABELS, output.logits_per_image[0].sigmoid().tolist(), strict=True))
    with Client(served.url) as http, GrpcClient(served.grpc_address) as grpc:
        for client in (http, grpc):
            answer = client.zero_shot(image, labels=LABELS, templates=["{}"], model="siglip")
            given = {score.label: score.score for score in answer.data[0].labels or ()}
            assert given == pytest.approx(wanted, abs=1e-5)


def _look_closely(model: torch.nn.Module) -> None:
    """Triples what attention to the image adds: random weights hardly tell pictures apart."""
    with torch.no_grad():
        for name, weights in model.named_parameters():
            if "encoder_attn." in name and name.endswith("weight"):
                weights *= 3


def _tokenizer(*, begins: bool) -> PreTrainedTokenizerFast:
    """Words as tokens; [SEP] behind a text, and [CLS] in front of it where `begins`."""
    ids = {token: number for number, token in enumerate(VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    template = "[CLS] $A [SEP]" if begins else "$A [SEP]"
    special = [(token, ids[token]) for token in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(template, special_tokens=special)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        eos_token="[SEP]",
        unk_token="[UNK]",
        bos_token="[BOS]",
        cls_token="[CLS]",
        sep_token="[SEP]",
    )
