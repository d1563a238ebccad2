"""Small random checkpoints that read pictures, with tokenizers of words, and their bundles."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import (
    CLIPImageProcessorPil,
    Gemma3ImageProcessorPil,
    GotOcr2ImageProcessorPil,
    GroundingDinoImageProcessorPil,
    Idefics2ImageProcessorPil,
    Idefics3ImageProcessorPil,
    LlavaNextImageProcessorPil,
    LlavaOnevisionImageProcessorPil,
    MllamaImageProcessorPil,
    Owlv2ImageProcessorPil,
    OwlViTImageProcessorPil,
    Pix2StructImageProcessorPil,
    PreTrainedTokenizerFast,
    Qwen2VLImageProcessorPil,
    ViTImageProcessorPil,
)

from export.pipeline.cli import export
from export.precision import Runtime
from tests.export.twins import make_twin, twin_of

REPOSITORY = "repository"
TEMPLATE = (
    "{% for m in messages %}{{ m.role | upper }} "
    "{% for p in m.content | selectattr('type', 'equalto', 'image') %}<image> {% endfor %}"
    "{% for p in m.content | selectattr('type', 'equalto', 'text') %}{{ p.text }} {% endfor %}"
    "{% endfor %}{% if add_generation_prompt %}ASSISTANT{% endif %}"
)
"""As that of llava-1.5: a message's images come first."""


WORDS = ["<pad>", "<s>", "</s>", *(f"w{number}" for number in range(3, 59))]
WORDS += ["USER", "ASSISTANT", "<image>", "w62", "<end>"]


IDEFICS3_TEMPLATE = (
    "<s>{% for m in messages %}{{ m.role | capitalize }}"
    "{{ ':' if m.content[0].type == 'image' else ': ' }}"
    "{% for p in m.content %}{{ '<image>' if p.type == 'image' else p.text }}{% endfor %}"
    "<end>\n{% endfor %}{% if add_generation_prompt %}Assistant:{% endif %}"
)
"""As that of Idefics3-8B-Llama3."""
GEMMA3_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}USER "
    "{% if m.content is string %}{{ m.content | trim }}{% else %}{% for p in m.content %}"
    "{{ '<start_of_image>' if p.type == 'image' else (p.text | trim) }}{% endfor %}{% endif %}"
    "<end>\n{% endfor %}{% if add_generation_prompt %}ASSISTANT\n{% endif %}"
)
"""As that of gemma-3-4b-it."""
SCANNED = {
    "do_pan_and_scan": True,
    "pan_and_scan_min_crop_size": 16,
    "pan_and_scan_max_num_crops": 3,
    "pan_and_scan_min_ratio_to_activate": 1.5,
}
"""How Gemma 3 divides long pictures."""
TILE = 33
"""Side of a tile of Idefics3; a picture has up to two by two of them."""
_TILE_WORDS = ["<fake_token_around_image>", "<global-img>", "\n", "\n\n"]
_TILE_WORDS += [f"<row_{row}_col_{column}>" for row in (1, 2) for column in (1, 2)]

QWEN_PLACE = "<|image_pad|>"
QWEN_VIDEO = "<|video_pad|>"
QWEN_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% for p in m.content %}"
    "{% if p.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% else %}{{ p.text }}{% endif %}{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""The form of that of Qwen2-VL-2B-Instruct."""
_QWEN_WORDS = ["<|vision_start|>", "<|vision_end|>", "<|im_start|>", "<|im_end|>"]
QWENS = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl")


def _tokenizer(
    layout: str, tiles: Sequence[str] = (), image: Sequence[str] = ("<image>",), **settings: Any
) -> PreTrainedTokenizerFast:
    """One of words; `layout` has the special tokens that are added to a text.

    Args:
        tiles: Further special tokens, in place of the last words before `USER`.
        image: Special tokens in place of that of an image and of the words in front of it.
    """
    words = WORDS[: 59 - len(tiles)] + list(tiles) + WORDS[59:]
    words[62 - len(image) : 62] = image
    ids = {word: place for place, word in enumerate(words)}
    backend = Tokenizer(models.WordLevel(ids, unk_token="w3"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = ["<pad>", "<s>", "</s>", *image, "<end>", *tiles]
    backend.add_special_tokens([AddedToken(text) for text in special])
    used = [(word, ids[word]) for word in special if word in layout]
    backend.post_processor = processors.TemplateProcessing(single=layout, special_tokens=used)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", unk_token="w3", **settings
    )


def _write_llava_next(folder: Path) -> None:
    configs = twin_of(folder.name).configs
    sizes = [[16, 16], [32, 16], [16, 48], [32, 32]]
    make_twin(
        folder.name,
        "odd",
        folder,
        {
            "text_config": {**configs["odd"]["text_config"], "max_position_embeddings": 256},
            "vision_config": {**configs["odd"]["vision_config"], "image_size": 16, "patch_size": 8},
            "image_grid_pinpoints": sizes,
            "video_token_index": 58,
        },
        seed=4,  # of which pictures change every answer
    )
    video = ["<video>"] if folder.name == "llava_onevision" else []
    tokenizer = _tokenizer("<s> $A", video, bos_token="<s>", eos_token="</s>")
    tokenizer.save_pretrained(folder)
    square = {"height": 16, "width": 16}
    recipe: Any = LlavaOnevisionImageProcessorPil(size=square, image_grid_pinpoints=sizes)
    if folder.name == "llava_next":
        recipe = LlavaNextImageProcessorPil(
            size={"shortest_edge": 16}, crop_size=square, image_grid_pinpoints=sizes
        )
    recipe.save_pretrained(folder)
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": TEMPLATE}))


def _write_idefics3(folder: Path) -> None:
    text = twin_of("idefics3").configs["odd"]["text_config"]
    make_twin(
        "idefics3",
        "odd",
        folder,
        {"text_config": {**text, "max_position_embeddings": 256}},
    )
    tokenizer = _tokenizer("<s> $A", _TILE_WORDS, bos_token="<s>", eos_token="</s>")
    tokenizer.save_pretrained(folder)
    recipe = Idefics3ImageProcessorPil(
        size={"longest_edge": 2 * TILE}, max_image_size={"longest_edge": TILE}
    )
    recipe.save_pretrained(folder)
    (folder / "processor_config.json").write_text(json.dumps({"image_seq_len": 4}))
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": IDEFICS3_TEMPLATE}))


def _write_idefics2(folder: Path) -> None:
    text = twin_of("idefics2").configs["odd"]["text_config"]
    make_twin("idefics2", "odd", folder, {"text_config": {**text, "max_position_embeddings": 256}})
    tokenizer = _tokenizer("<s> $A", _TILE_WORDS, bos_token="<s>", eos_token="</s>")
    tokenizer.save_pretrained(folder)
    size = {"shortest_edge": 17, "longest_edge": 40}
    Idefics2ImageProcessorPil(size=size, do_image_splitting=True).save_pretrained(folder)
    (folder / "processor_config.json").write_text(json.dumps({"image_seq_len": 4}))
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": IDEFICS3_TEMPLATE}))


GROUNDED = "grounding-dino"
GROUNDED_RUNTIMES = {GROUNDED: Runtime.ONNXRUNTIME, f"{GROUNDED}-openvino": Runtime.OPENVINO}


def _write_grounded(folder: Path) -> None:
    """A detector that reads its labels with the picture, whose tokens have BERT's numbers."""
    make_twin(GROUNDED, "odd", folder)
    special = {0: "[PAD]", 1: "[UNK]", 101: "[CLS]", 102: "[SEP]", 1012: ".", 1029: "?"}
    words = [special.get(number, f"w{number}") for number in range(1040)]
    ids = {word: place for place, word in enumerate(words)}
    backend = Tokenizer(models.WordLevel(ids, unk_token="[UNK]"))
    backend.normalizer = normalizers.Lowercase()
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    named = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    backend.add_special_tokens([AddedToken(text) for text in named])
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 101), ("[SEP]", 102)]
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
    )
    tokenizer.save_pretrained(folder)
    size = {"shortest_edge": 40, "longest_edge": 72}
    GroundingDinoImageProcessorPil(size=size).save_pretrained(folder)


DETECTORS = {"owlvit": OwlViTImageProcessorPil, "owlv2": Owlv2ImageProcessorPil}


def export_labelled(made: Path) -> None:
    """As `export_pictured`, of models that find labels in pictures.

    CLIPSeg's pictures are larger than its table of positions, as those of published checkpoints.
    """
    kinds = {name: ("odd", kind, 44) for name, kind in DETECTORS.items()}
    kinds["clipseg"] = ("resized", ViTImageProcessorPil, 40)
    for name, (config, kind, side) in kinds.items():
        make_twin(name, config, made / name)
        _tokenizer("$A <end>", eos_token="<end>").save_pretrained(made / name)
        kind(size={"height": side, "width": side}).save_pretrained(made / name)
        export(str(made / name), repository=made / REPOSITORY)
    _write_grounded(made / GROUNDED)
    for name, runtime in GROUNDED_RUNTIMES.items():
        export(str(made / GROUNDED), name=name, repository=made / REPOSITORY, runtime=runtime)


def _write_gemma3(folder: Path) -> None:
    text = twin_of("gemma3").configs["odd"]["text_config"]
    changes = {"boi_token_index": 57, "eoi_token_index": 58}
    changes |= {"text_config": {**text, "max_position_embeddings": 256, "sliding_window": 9}}
    make_twin("gemma3", "odd", folder, changes)
    places = {"boi_token": "<start_of_image>", "eoi_token": "<end_of_image>"}
    named = {**places, "image_token": "<image>"}
    tokenizer = _tokenizer(
        *("<s> $A", list(places.values())),
        bos_token="<s>",
        eos_token="</s>",
        extra_special_tokens=named,
    )
    tokenizer.save_pretrained(folder)
    Gemma3ImageProcessorPil(size={"height": 15, "width": 15}, **SCANNED).save_pretrained(folder)
    (folder / "processor_config.json").write_text(json.dumps({"image_seq_length": 4}))
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": GEMMA3_TEMPLATE}))


INTERNVL_PLACE = "<IMG_CONTEXT>"
INTERNVL_TEMPLATE = QWEN_TEMPLATE.replace(
    "<|vision_start|><|image_pad|><|vision_end|>", f"{INTERNVL_PLACE}\n"
)
"""The form of that of InternVL3-1B-hf."""


def _write_internvl(folder: Path) -> None:
    text = twin_of("internvl").configs["odd"]["text_config"]
    changes = {"text_config": {**text, "max_position_embeddings": 256}}
    make_twin("internvl", "odd", folder, changes, seed=3)
    named = {"start_image_token": "<img>", "end_image_token": "</img>"}
    named |= {"context_image_token": INTERNVL_PLACE, "video_token": "<video>"}
    words = ["<img>", "</img>", "<video>", "<|im_start|>", "<|im_end|>"]
    tokenizer = _tokenizer(
        "$A", words, (INTERNVL_PLACE,), eos_token="</s>", extra_special_tokens=named
    )
    tokenizer.save_pretrained(folder)
    GotOcr2ImageProcessorPil(size={"height": 23, "width": 23}, max_patches=4).save_pretrained(
        folder
    )
    (folder / "processor_config.json").write_text(json.dumps({"image_seq_length": 4}))
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": INTERNVL_TEMPLATE}))


MLLAMA_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{{ m.role | upper }} {% for p in m.content %}"
    "{{ '<image> ' if p.type == 'image' else p.text }}{% endfor %} <end> {% endfor %}"
    "{% if add_generation_prompt %}ASSISTANT{% endif %}"
)
"""The form of that of Llama-3.2-11B-Vision-Instruct."""


def _write_mllama(folder: Path) -> None:
    text = twin_of("mllama").configs["odd"]["text_config"]
    changes = {"text_config": {**text, "vocab_size": 64, "max_position_embeddings": 256}}
    make_twin("mllama", "odd", folder, changes, seed=2)
    named = {"bos_token": "<s>", "eos_token": "</s>"}
    tokenizer = _tokenizer("<s> $A", **named, extra_special_tokens={"image_token": "<image>"})
    tokenizer.save_pretrained(folder)
    MllamaImageProcessorPil(size={"height": 11, "width": 11}).save_pretrained(folder)
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": MLLAMA_TEMPLATE}))


def _write_qwen(folder: Path) -> None:
    text = twin_of(folder.name).configs["odd"]["text_config"]
    changes = {"text_config": {**text, "max_position_embeddings": 256}}
    make_twin(folder.name, "odd", folder, changes, seed=1)  # pictures change every answer
    tokenizer = _tokenizer("$A", _QWEN_WORDS, (QWEN_VIDEO, QWEN_PLACE), eos_token="</s>")
    tokenizer.save_pretrained(folder)
    recipe = Qwen2VLImageProcessorPil(min_pixels=200, max_pixels=2400, patch_size=5)
    recipe.save_pretrained(folder)
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": QWEN_TEMPLATE}))


def _write_pix2struct(folder: Path, *, is_vqa: bool) -> None:
    vision = twin_of("pix2struct").configs["odd"]["vision_config"]
    make_twin("pix2struct", "odd", folder, {"vision_config": {**vision, "seq_len": 100}})
    _tokenizer("$A </s>", bos_token="<s>", eos_token="</s>").save_pretrained(folder)
    patch = {"height": 2, "width": 2}
    recipe = Pix2StructImageProcessorPil(max_patches=60, patch_size=patch, is_vqa=is_vqa)
    recipe.save_pretrained(folder)


def export_pictured(made: Path) -> None:
    """Write the checkpoints with all files of such folders, and export them to `REPOSITORY`."""
    make_twin("llava", "odd", made / "llava")
    _tokenizer("<s> $A", bos_token="<s>", eos_token="</s>").save_pretrained(made / "llava")
    square = {"height": 16, "width": 16}
    recipe = CLIPImageProcessorPil(size={"shortest_edge": 16}, crop_size=square)
    recipe.save_pretrained(made / "llava")
    (made / "llava" / "chat_template.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    for name in ("llava_next", "llava_onevision"):
        _write_llava_next(made / name)
    _write_idefics2(made / "idefics2")
    _write_idefics3(made / "idefics3")
    _write_gemma3(made / "gemma3")
    _write_internvl(made / "internvl")
    _write_mllama(made / "mllama")
    for name in QWENS:
        _write_qwen(made / name)
    _write_pix2struct(made / "pix2struct", is_vqa=False)
    _write_pix2struct(made / "pix2struct-vqa", is_vqa=True)
    for name in (
        "llava",
        "llava_next",
        "llava_onevision",
        "idefics2",
        "idefics3",
        "gemma3",
        "internvl",
        "mllama",
        *QWENS,
        "pix2struct",
        "pix2struct-vqa",
    ):
        export(str(made / name), repository=made / REPOSITORY)
