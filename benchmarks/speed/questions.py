"""Questions about pictures: an image of 512 × 512 in a prompt, and the models that take it.

`qwen2-vl-224m` has the image tower of SmolVLM-256M (1,024 patches, ViT-B) and its language model
(SmolLM2-135M), joined as Qwen2-VL joins them, because openvino_genai decodes Qwen2-VL and not
SmolVLM: 256 vectors an image in place of 64. `smolvlm-256m` is SmolVLM's own shape, with the image
as one tile.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from string import ascii_letters
from typing import Any

import numpy as np

EDGE = 512
"""Pixels of an image's side."""
LETTERS = 16
"""Of a question."""
SPECIAL = (
    *("<|endoftext|>", "<|im_start|>", "<|vision_start|>", "<|vision_end|>"),
    *("<|vision_pad|>", "<|image_pad|>", "<|video_pad|>", "<|im_end|>"),
)
VOCABULARY = 49_280
QWEN = "qwen2-vl-224m"
"""The model that OpenVINO GenAI decodes."""


def special_id(token: str) -> int:
    """The id of a special token of `qwen2-vl-224m`, which are its last ones."""
    return VOCABULARY - len(SPECIAL) + SPECIAL.index(token)


@dataclass(frozen=True)
class Picture:
    """How a model's prompts hold an image.

    Attributes:
        token_id: Stands for a part of it.
        tokens: In a row.
        around: In front of them and behind them.
    """

    token_id: int
    tokens: int
    around: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())

    def prompt(self, letters: str) -> tuple[int, ...]:
        """The ids of a picture and a question."""
        before, behind = self.around
        return (*before, *(self.token_id,) * self.tokens, *behind, *letter_ids(letters))


PICTURES: Mapping[str, Picture] = {
    QWEN: Picture(
        special_id("<|image_pad|>"),
        (EDGE // 32) ** 2,
        ((special_id("<|vision_start|>"),), (special_id("<|vision_end|>"),)),
    ),
    "smolvlm-256m": Picture(49_279, 64),
}
"""By model."""
_FIRST_BYTE, _SPACE = 33, 220
"""The character whose byte is the first symbol of byte-level BPE; the symbol of a space."""


def letter_ids(letters: str) -> tuple[int, ...]:
    """Ids of `question_text`: its letters are no pair that the tokenizer of `make_qwen` merges."""
    return tuple(each for letter in letters for each in (_SPACE, ord(letter) - _FIRST_BYTE))


def question_text(prompt: tuple[int, ...]) -> str:
    """The text behind the picture of a prompt, for systems that take no ids."""
    return "".join(f" {chr(each + _FIRST_BYTE)}" for each in prompt[-2 * LETTERS + 1 :: 2])


def question(model: str, random: np.random.Generator) -> tuple[int, ...]:
    """A prompt whose words no other one has."""
    return PICTURES[model].prompt("".join(random.choice(list(ascii_letters), LETTERS)))


def picture(seed: int) -> Any:
    """A random image (512, 512, 3) uint8."""
    return np.random.default_rng(seed).integers(0, 256, (EDGE, EDGE, 3), dtype=np.uint8)


def make_qwen(folder: Path) -> None:
    """A checkpoint of random weights of `qwen2-vl-224m`, with the files of published ones."""
    import transformers

    from benchmarks.full_size.shapes import save_byte_pairs

    rotation = {"rope_type": "default", "rope_theta": 100_000.0, "mrope_section": [8, 12, 12]}
    text = {
        "vocab_size": VOCABULARY,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        "initializer_range": 0.05,
        "tie_word_embeddings": True,
        "bos_token_id": special_id("<|endoftext|>"),
        "eos_token_id": special_id("<|im_end|>"),
        "pad_token_id": special_id("<|endoftext|>"),
        "rope_parameters": rotation,
    }
    vision = {"depth": 12, "embed_dim": 768, "hidden_size": 576, "num_heads": 12, "patch_size": 16}
    config = transformers.Qwen2VLConfig(
        text_config=text,
        vision_config=vision,
        image_token_id=special_id("<|image_pad|>"),
        video_token_id=special_id("<|video_pad|>"),
        vision_start_token_id=special_id("<|vision_start|>"),
        vision_end_token_id=special_id("<|vision_end|>"),
        tie_word_embeddings=True,
    )
    transformers.Qwen2VLForConditionalGeneration(config).save_pretrained(folder)
    save_byte_pairs(folder, VOCABULARY, SPECIAL)
    recipe = transformers.Qwen2VLImageProcessorPil(
        min_pixels=EDGE**2 // 4, max_pixels=EDGE**2, patch_size=16
    )
    recipe.save_pretrained(folder)
    _write_published_rotation(folder / "config.json", rotation)
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": _TEMPLATE}))


def _write_published_rotation(file: Path, rotation: Any) -> None:
    """Rotary fields as in published files: the exporter to OpenVINO GenAI reads no others."""
    config = json.loads(file.read_text(encoding="utf-8"))
    text = config["text_config"]
    del text["rope_parameters"]
    text["rope_theta"] = rotation["rope_theta"]
    text["rope_scaling"] = {"type": "mrope", "mrope_section": rotation["mrope_section"]}
    file.write_text(json.dumps(config, indent=1), encoding="utf-8")


_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% for p in m.content %}"
    "{% if p.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% else %}{{ p.text }}{% endif %}{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def make_smolvlm(folder: Path) -> None:
    """A checkpoint of random weights of SmolVLM-256M's shape, whose recipe divides no image."""
    from benchmarks.full_size.shapes import make_checkpoint

    make_checkpoint("smolvlm-256m", folder)
    recipe = folder / "preprocessor_config.json"
    undivided = {"do_image_splitting": False, "size": {"longest_edge": EDGE}}
    recipe.write_text(json.dumps(json.loads(recipe.read_text()) | undivided))
