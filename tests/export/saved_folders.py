"""Folders of tiny random checkpoints with all files that `transformers` writes today.

Model, generation defaults, tokenizers, image processor and chat template are saved by the installed
version. Its classes are those of `AutoProcessor`, `AutoImageProcessor` and the like.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from functools import partial
from math import isqrt
from pathlib import Path
from typing import Any

import sentencepiece
import transformers
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast
from transformers.models.auto.image_processing_auto import IMAGE_PROCESSOR_MAPPING_NAMES
from transformers.models.auto.processing_auto import PROCESSOR_MAPPING_NAMES

from export.registry import architecture
from tests.export.twins import make_twin

_NAMED = {
    "image_token": "<image>",
    "boi_token": "<start_of_image>",
    "eoi_token": "<end_of_image>",
    "video_token": "<video>",
    "fake_image_token": "<fake_token_around_image>",
    "global_image_token": "<global-img>",
    "end_of_utterance_token": "<end_of_utterance>",
    "english_token": "en_XX",
    "german_token": "__de__",
    "image_boundary_token": "<fake_token_around_image>",
}
"""Special tokens that processors take from their tokenizer by name."""
_SPECIAL = ("<pad>", "<s>", "</s>", "[MASK]", "[CLS]", "[SEP]")
SPECIAL_IDS = {
    **{text: place for place, text in enumerate(_SPECIAL)},
    **{text: 61 - place for place, text in enumerate(_NAMED.values())},
}
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{{ m.role }} "
    "{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}"
    "{{ 'PLACE' if p.type == 'image' else p.text }}{% endfor %}{% endif %}{% endfor %}"
)


def tokenizer(size: int = 64) -> PreTrainedTokenizerFast:
    """One of words, whose special tokens have names."""
    texts = {place: text for text, place in SPECIAL_IDS.items()}
    ids = {texts.get(place, f"w{place}"): place for place in range(size)}
    backend = Tokenizer(models.WordLevel(ids, unk_token="w9"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.add_special_tokens([AddedToken(text) for text in SPECIAL_IDS])
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> $B </s>",
        special_tokens=[(text, ids[text]) for text in ("<s>", "</s>")],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        unk_token="w9",
        mask_token="[MASK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        extra_special_tokens=_NAMED,
    )


def write_pieces(path: Path) -> None:
    """A sentencepiece model of a few letters."""
    lines = iter(["abc cab bca"] * 20)
    with path.open("wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=lines, model_writer=file, vocab_size=12, hard_vocab_limit=False,
            minloglevel=2,
        )  # fmt: skip


def save(name: str, config: str, folder: Path) -> Any:
    """Writes a twin's folder; returns the model of `transformers`."""
    model = make_twin(name, config, folder)
    values = json.loads((folder / "config.json").read_text())
    declared = architecture(name)
    size = declared.size_of(declared.read_config(values))
    words = tokenizer()
    words.chat_template = CHAT_TEMPLATE
    words.save_pretrained(folder)
    if declared.tokenizer == "sentencepiece_pair":  # whose files are copied as they are
        (folder / "vocab.json").write_text(json.dumps({"</s>": 0, "<unk>": 1, "<pad>": 2}))
        for file in ("source.spm", "target.spm"):
            write_pieces(folder / file)
    if declared.tokenizer == "moses_pair":
        ids = {text: place for place, text in enumerate(("<s>", "<pad>", "</s>", "<unk>", "a</w>"))}
        for side in ("src", "tgt"):
            (folder / f"vocab-{side}.json").write_text(json.dumps(ids))
        (folder / "merges.txt").write_text("")
        (folder / "tokenizer_config.json").write_text(json.dumps({"langs": ["en", "de"]}))
    if size is None:
        return model
    recipe = image_processor(name, values, size)
    wanted = PROCESSOR_MAPPING_NAMES.get(values["model_type"])
    if wanted is None:
        recipe.save_pretrained(folder)
    else:
        _save_processor(getattr(transformers, wanted), recipe, words, values, folder)
    return model


def image_processor(name: str, values: Mapping[str, Any], size: tuple[int, int]) -> Any:
    """The image processor of an architecture for images of that size."""
    kind = values["model_type"]
    kind = {"vision-encoder-decoder": "vit", "dinov2_with_registers": "dinov2"}.get(kind, kind)
    made = getattr(transformers, IMAGE_PROCESSOR_MAPPING_NAMES[kind]["pil"])
    height, width = size
    both = {"height": height, "width": width}
    fields: dict[str, Any] = {"size": both}
    if "crop_size" in vars(made) and getattr(made, "do_center_crop", False):
        fields["crop_size"] = both
    vision = values.get("vision_config") or {}
    match kind:
        case "idefics2":
            fields = {"size": {"shortest_edge": height, "longest_edge": 3 * height}}
        case "idefics3" | "smolvlm":
            fields = {
                "max_image_size": {"longest_edge": height},
                "size": {"longest_edge": 2 * height},
            }
        case "llava_next":
            edge = vision["image_size"]
            fields = {"size": {"shortest_edge": edge}, "crop_size": {"height": edge, "width": edge}}
            fields["image_grid_pinpoints"] = values["image_grid_pinpoints"]
        case "llava_onevision":
            edge = vision["image_size"]
            fields = {"size": {"height": edge, "width": edge}}
            fields["image_grid_pinpoints"] = values["image_grid_pinpoints"]
        case "qwen2_vl" | "qwen2_5_vl" | "qwen3_vl":
            fields = {
                "patch_size": vision["patch_size"],
                "merge_size": vision["spatial_merge_size"],
            }
            fields["temporal_patch_size"] = vision["temporal_patch_size"]
            fields["size"] = {"shortest_edge": 16, "longest_edge": 1 << 16}
        case "resnet" | "convnext" | "convnextv2":
            fields = {"size": {"shortest_edge": height}}
        case "grounding-dino":
            fields = {"size": {"shortest_edge": 32, "longest_edge": 64}}
        case "align":
            fields["include_top"] = False
        case "vilt":
            fields = {"size": {"shortest_edge": 32}, "size_divisor": 8}
        case "siglip2":
            fields = {"max_num_patches": 20, "patch_size": vision["patch_size"]}
        case "pix2struct":
            edge = isqrt(vision["patch_embed_hidden_size"] // 3)
            fields = {"max_patches": 16, "patch_size": {"height": edge, "width": edge}}
        case "florence2":
            fields = {"size": {"height": 32, "width": 32}, "do_center_crop": False}
        case "mllama":
            fields["max_image_tiles"] = vision.get("max_num_tiles", 4)
        case "idefics":
            fields = {"image_size": height}
    return made(**fields)


def _save_processor(
    kind: Any, recipe: Any, words: PreTrainedTokenizerFast, values: Mapping[str, Any], folder: Path
) -> None:
    """The files of a processor; one that reads videos cannot be made without torchvision."""
    images = {**(values.get("encoder") or {}), **values}
    fields = {
        "num_query_tokens": values.get("num_query_tokens"),
        "patch_size": (values.get("vision_config") or {}).get("patch_size"),
        "vision_feature_select_strategy": values.get("vision_feature_select_strategy"),
        "image_seq_length": images.get("mm_tokens_per_image", values.get("image_seq_length")),
    }
    if "perceiver_config" in values and values["model_type"] == "idefics2":
        fields["image_seq_len"] = values["perceiver_config"]["resampler_n_latents"]
    if "scale_factor" in values:
        vision = values["vision_config"]
        side = vision["image_size"] // vision["patch_size"]
        fields["image_seq_len"] = (side // values["scale_factor"]) ** 2
    if kind.__name__ == "PaliGemmaProcessor":
        recipe.image_seq_length = 4
    known = inspect.signature(kind.__init__).parameters
    fields = {name: value for name, value in fields.items() if name in known}
    parts = {"image_processor": recipe, "tokenizer": words, "qformer_tokenizer": tokenizer()}
    needed = kind.get_attributes()
    if "video_processor" in needed:
        saved = {"image_processor": recipe.to_dict(), "processor_class": kind.__name__}
        saved["video_processor"] = {"video_processor_type": f"{kind.__name__[:-9]}VideoProcessor"}
        (folder / "processor_config.json").write_text(json.dumps(saved | fields))
        (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)
        return
    if "chat_template" in known:
        fields["chat_template"] = CHAT_TEMPLATE
    processor = kind(**{part: parts[part] for part in needed}, **fields)
    processor.save_pretrained(folder)


def make_older(folder: Path) -> None:
    """Rewrites the files of a folder as versions before 5 wrote them."""
    _edit(folder / "config.json", _older_config)
    _edit(folder / "generation_config.json", _older_names)
    combined = folder / "processor_config.json"
    if combined.is_file():
        values = json.loads(combined.read_text())
        recipe = values.pop("image_processor", None)
        values.pop("video_processor", None)
        combined.write_text(json.dumps(values))
        if recipe is not None:
            (folder / "preprocessor_config.json").write_text(json.dumps(recipe))
    template = folder / "chat_template.jinja"
    for each in (folder, folder / "qformer_tokenizer"):
        _edit(each / "tokenizer_config.json", partial(_older_settings, template))
    template.unlink(missing_ok=True)


def _edit(path: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    if path.is_file():
        path.write_text(json.dumps(change(json.loads(path.read_text()))))


def _older_names(values: Mapping[str, Any]) -> dict[str, Any]:
    return {"torch_dtype" if name == "dtype" else name: value for name, value in values.items()}


def _older_config(values: Mapping[str, Any]) -> dict[str, Any]:
    """Rotations as `rope_theta` and `rope_scaling`, in each section."""
    older = _older_names(values)
    for name, value in older.items():
        if name.endswith("_config") and isinstance(value, dict):
            older[name] = _older_config(value)
    rope = older.get("rope_parameters")
    if (
        rope is None
        or rope.get("rope_type") == "axial"
        or _is_only_newer(older["model_type"], rope)
    ):
        return older
    del older["rope_parameters"]
    kinds = {kind: dict(each) for kind, each in rope.items() if isinstance(each, dict)}
    whole = kinds.get("full_attention") or dict(rope)
    names = dict.fromkeys(("whole", "full_attention"), "rope_theta")
    names["sliding_attention"] = "rope_local_base_freq"
    if older["model_type"] == "modernbert":
        names |= {"full_attention": "global_rope_theta", "sliding_attention": "local_rope_theta"}
    for kind, each in (kinds or {"whole": whole}).items():
        older[names[kind]] = each.pop("rope_theta")
    whole.pop("rope_theta", None)
    if "mrope_section" in whole:
        whole["rope_type"] = "mrope"
    older["rope_scaling"] = None if whole.get("rope_type") == "default" else whole
    return older


def _is_only_newer(model_type: str, rope: Mapping[str, Any]) -> bool:
    """Whether older files had no fields for such scaling of rotations."""
    kinds = {each["rope_type"] for each in rope.values() if isinstance(each, dict)}
    return model_type == "modernbert" and kinds != {"default"}


def _older_settings(template: Path, values: Mapping[str, Any]) -> dict[str, Any]:
    """Further special tokens as a list beside names in a section, and the chat template."""
    older = dict(values)
    further = older.pop("extra_special_tokens", None)
    if further is not None:
        older["additional_special_tokens"] = further
    older.pop("model_specific_special_tokens", None)
    older["extra_special_tokens"] = {name: older.pop(name) for name in _NAMED if name in older}
    if template.is_file():
        older["chat_template"] = template.read_text()
    return older
