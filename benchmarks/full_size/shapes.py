"""Shapes of published checkpoints, by `transformers` classes and fields of `config.json`.

Generators repeat a token: of NLLB's shape it is the target's language, whose text is empty.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice, product
from pathlib import Path
from typing import Any

_GRID = tuple(product(range(1, 7), repeat=2))
"""Rows and columns of LLaVA-OneVision's tiles."""
QWEN_ENDS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
QWEN_UNUSED = 290
"""Rows of Qwen2's tables behind its last token."""
EXAMPLES = Path(__file__).parents[2] / "examples" / "checkpoints"


def make_checkpoint(name: str, folder: Path) -> int:
    """Writes a checkpoint of random weights; its number of parameters."""
    import torch
    import transformers

    shape = SHAPES[name]
    torch.manual_seed(0)
    model_class = getattr(transformers, shape.model)
    config = _config(transformers, model_class, shape)
    torch.set_default_dtype(getattr(torch, shape.dtype))
    try:
        model = model_class(config)
    finally:
        torch.set_default_dtype(torch.float32)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    model.save_pretrained(folder)
    for kind in shape.files:
        _FILES[kind](folder, _vocabulary_size(config))
    return parameters


def _config(transformers: Any, model_class: Any, shape: Shape) -> Any:
    if shape.model != "VisionEncoderDecoderModel":
        return model_class.config_class(**shape.fields)
    decoder = transformers.GPT2Config(add_cross_attention=True, is_decoder=True)
    return transformers.VisionEncoderDecoderConfig.from_encoder_decoder_configs(
        transformers.ViTConfig(),
        decoder,
        decoder_start_token_id=2,
        pad_token_id=2,
        eos_token_id=2,
    )


def _vocabulary_size(config: Any) -> int:
    for part in (config, getattr(config, "decoder", None), getattr(config, "text_config", None)):
        size = getattr(part, "vocab_size", getattr(part, "tgt_vocab_size", None))
        if isinstance(size, int):
            return size
    return 0


def _word_tokenizer(folder: Path, size: int) -> None:
    """One word per id; the first three are padding, start and end."""
    _save_words(folder, size, ())


def _language_tokenizer(folder: Path, size: int) -> None:
    """The same with tokens of languages at the end, as NLLB has them."""
    _save_words(folder, size, ("eng_Latn", "fra_Latn", "spa_Latn"))


def _image_tokenizer(folder: Path, size: int) -> None:
    """One word per id, the last of which stands for a part of an image."""
    _save_words(folder, size, ("<image>",))


def _tile_files(folder: Path, size: int) -> None:
    """The same, and tiles of 512 × 512, up to 4 × 4."""
    _image_tokenizer(folder, size)
    recipe = {
        "image_processor_type": "Idefics3ImageProcessor",
        "size": {"longest_edge": 2048},
        "max_image_size": {"longest_edge": 512},
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(recipe), encoding="utf-8")


def _save_words(folder: Path, size: int, special: tuple[str, ...]) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {"<pad>": 0, "<s>": 1, "</s>": 2, "[MASK]": 3}
    words |= {f"w{number}": number for number in range(len(words), size - len(special))}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(list(special))
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "mask_token": "[MASK]"}
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", **names}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")


def _qwen_tokenizer(folder: Path, size: int) -> None:
    """That of Qwen2's size."""
    save_byte_pairs(folder, size - QWEN_UNUSED, QWEN_ENDS)


def save_byte_pairs(folder: Path, size: int, special: Sequence[str]) -> None:
    """Byte-level BPE of Qwen2's classes: bytes, all pairs of them, then triples, special tokens.

    Args:
        special: The last of them ends a text.
    """
    from tokenizers import AddedToken, pre_tokenizers
    from transformers import Qwen2Tokenizer

    symbols = sorted(pre_tokenizers.ByteLevel.alphabet())
    count = size - len(special) - len(symbols)
    merges = list(islice(_merges(symbols), count))
    pieces = chain(symbols, map("".join, merges), special)
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    tokenizer = Qwen2Tokenizer(vocabulary, merges, eos_token=special[-1])
    tokenizer.add_tokens([AddedToken(text, special=True) for text in special])
    tokenizer.save_pretrained(folder)


def _merges(symbols: list[str]) -> Iterator[tuple[str, str]]:
    yield from product(symbols, repeat=2)
    yield from ((first + second, third) for first, second, third in product(symbols, repeat=3))


def _marian_tokenizer(folder: Path, size: int) -> None:
    """The example's sentencepiece models under a vocabulary of full size."""
    example = EXAMPLES / "example-es-en"
    for file in ("source.spm", "target.spm", "tokenizer_config.json"):
        shutil.copy(example / file, folder)
    pieces = json.loads((example / "vocab.json").read_text(encoding="utf-8"))
    del pieces["<pad>"]
    pieces |= {f"w{number}": number for number in range(len(pieces), size - 1)}
    pieces["<pad>"] = size - 1
    (folder / "vocab.json").write_text(json.dumps(pieces), encoding="utf-8")


def _moses_tokenizer(folder: Path, size: int) -> None:
    """FSMT's: one word per id of either side, and no merges."""
    pieces = ("<s>", "<pad>", "</s>", "<unk>", *(f"w{number}</w>" for number in range(4, size)))
    text = json.dumps({piece: number for number, piece in enumerate(pieces)})
    settings = {"tokenizer_class": "FSMTTokenizer", "langs": ["en", "de"]}
    files = {"vocab-src.json": text, "vocab-tgt.json": text, "merges.txt": "w 4</w> 1\n"}
    for file, content in (files | {"tokenizer_config.json": json.dumps(settings)}).items():
        (folder / file).write_text(content, encoding="utf-8")


def _image_recipe(folder: Path, size: int, /, **fields: Any) -> None:
    """224 × 224 pixels; other fields may be given."""
    text = (EXAMPLES / "example-captioner" / "preprocessor_config.json").read_text(encoding="utf-8")
    recipe = json.loads(text) | {"size": {"height": 224, "width": 224}} | fields
    (folder / "preprocessor_config.json").write_text(json.dumps(recipe), encoding="utf-8")


def _chat_template(folder: Path, size: int) -> None:
    """A chat template for the tokenizer that is there: contents, one after the other."""
    path = folder / "tokenizer_config.json"
    template = "{% for message in messages %}{{ message['content'] }} {% endfor %}"
    settings = json.loads(path.read_text(encoding="utf-8")) | {"chat_template": template}
    path.write_text(json.dumps(settings), encoding="utf-8")


def _sentence_modules(folder: Path, size: int) -> None:
    """The first token's vector, normalised: the modules of a sentence-transformers folder."""
    kinds = {"": "Transformer", "1_Pooling": "Pooling", "2_Normalize": "Normalize"}
    modules = [
        {
            "idx": index,
            "name": str(index),
            "path": path,
            "type": f"sentence_transformers.models.{kind}",
        }
        for index, (path, kind) in enumerate(kinds.items())
    ]
    (folder / "modules.json").write_text(json.dumps(modules), encoding="utf-8")
    pooling = {"word_embedding_dimension": 768, "pooling_mode_cls_token": True}
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling), encoding="utf-8")


_FILES: Mapping[str, Callable[[Path, int], None]] = {
    "tokenizer": _word_tokenizer,
    "languages": _language_tokenizer,
    "image_token": _image_tokenizer,
    "tiles": _tile_files,
    "qwen": _qwen_tokenizer,
    "marian": _marian_tokenizer,
    "moses": _moses_tokenizer,
    "image": _image_recipe,
    "vilt": partial(
        _image_recipe,
        image_processor_type="ViltImageProcessor",
        size={"shortest_edge": 384},
        size_divisor=32,
    ),
    "align": partial(
        _image_recipe,
        image_processor_type="EfficientNetImageProcessor",
        size={"height": 289, "width": 289},
    ),
    "internvl": partial(
        _image_recipe,
        image_processor_type="GotOcr2ImageProcessorFast",
        size={"height": 448, "width": 448},
        crop_to_patches=True,
    ),
    "onevision": partial(
        _image_recipe,
        image_processor_type="LlavaOnevisionImageProcessor",
        size={"height": 384, "width": 384},
        image_grid_pinpoints=[[384 * row, 384 * column] for row, column in _GRID],
    ),
    "siglip": partial(_image_recipe, image_processor_type="SiglipImageProcessor"),
    "videomae": partial(
        _image_recipe,
        image_processor_type="VideoMAEImageProcessor",
        size={"shortest_edge": 224},
    ),
    "sentences": _sentence_modules,
    "chat": _chat_template,
}


@dataclass(frozen=True)
class Shape:
    """One published checkpoint's shape.

    Attributes:
        model: Class of `transformers` that makes the weights.
        fields: Of its `config.json`, where they differ from the class's defaults.
        files: What the folder holds beside weights: keys of `_FILES`.
        dtype: Of the saved weights, as the published file's.
    """

    model: str
    fields: Mapping[str, Any]
    files: tuple[str, ...] = ("tokenizer",)
    dtype: str = "float32"


_GPT_LIKE = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
_SUMMARY = {**_GPT_LIKE, "decoder_start_token_id": 2}
_M2M = {
    "vocab_size": 128_112, "d_model": 1024, "encoder_layers": 12, "decoder_layers": 12,
    "encoder_ffn_dim": 4096, "decoder_ffn_dim": 4096, "encoder_attention_heads": 16,
    "decoder_attention_heads": 16, "max_position_embeddings": 1024, "scale_embedding": True,
    "decoder_start_token_id": 2, "pad_token_id": 0, "bos_token_id": 1,
}  # fmt: skip
_QWEN = {
    "model_type": "qwen2", "hidden_size": 896, "intermediate_size": 4864,
    "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2,
    "max_position_embeddings": 32_768, "rope_theta": 1_000_000.0, "rms_norm_eps": 1e-6,
    **_GPT_LIKE,
}  # fmt: skip
_SO400M = {
    "hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27,
    "num_attention_heads": 16,
}  # fmt: skip
_T5GEMMA = {
    "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 8,
    "num_attention_heads": 8, "num_key_value_heads": 8, "head_dim": 64,
    "query_pre_attn_scalar": 64, **_GPT_LIKE,
}  # fmt: skip
SHAPES: dict[str, Shape] = {
    "opus-mt-74m": Shape(
        "MarianMTModel",
        {
            "vocab_size": 58_101,
            "d_model": 512,
            "encoder_layers": 6,
            "decoder_layers": 6,
            "encoder_attention_heads": 8,
            "decoder_attention_heads": 8,
            "encoder_ffn_dim": 2048,
            "decoder_ffn_dim": 2048,
            "activation_function": "swish",
            "max_position_embeddings": 512,
            "scale_embedding": True,
            "eos_token_id": 0,
            "pad_token_id": 58_100,
            "decoder_start_token_id": 58_100,
            "forced_eos_token_id": 0,
        },
        ("marian",),
        "float16",
    ),
    "vit-base-patch16": Shape(
        "ViTForImageClassification", {"num_labels": 1000}, ("image",)
    ),
    "bge-base": Shape("BertModel", {"vocab_size": 30_522}, ("tokenizer", "sentences")),
    "bert-base": Shape("BertForMaskedLM", {"vocab_size": 30_522}),
    "gpt2-124m": Shape("GPT2LMHeadModel", {"bos_token_id": 2, "eos_token_id": 2}),
    "smollm2-135m": Shape(
        "LlamaForCausalLM",
        {
            "vocab_size": 49_152, "hidden_size": 576, "intermediate_size": 1536,
            "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3,
            "max_position_embeddings": 8192, "rope_theta": 100_000.0, "rms_norm_eps": 1e-5,
            "tie_word_embeddings": True, **_GPT_LIKE,
        },
        ("tokenizer", "chat"),
        "bfloat16",
    ),
    "clip-vit-base-patch32": Shape("CLIPModel", {"projection_dim": 512}, ("tokenizer", "image")),
    "t5-base": Shape(
        "T5ForConditionalGeneration",
        {
            "d_model": 768, "d_ff": 3072, "num_layers": 12, "num_heads": 12,
            "decoder_start_token_id": 0,
        },
    ),
    "vit-gpt2-239m": Shape("VisionEncoderDecoderModel", {}, ("tokenizer", "image")),
    "smolvlm-256m": Shape(
        "Idefics3ForConditionalGeneration",
        {
            "image_token_id": 49_279,
            "scale_factor": 4,
            "text_config": {
                "model_type": "llama",
                "vocab_size": 49_280,
                "hidden_size": 576,
                "intermediate_size": 1536,
                "num_hidden_layers": 30,
                "num_attention_heads": 9,
                "num_key_value_heads": 3,
                "head_dim": 64,
                "max_position_embeddings": 8192,
                "bos_token_id": 1,
                "eos_token_id": 2,
                "pad_token_id": 0,
            },
            "vision_config": {
                "hidden_size": 768,
                "image_size": 512,
                "patch_size": 16,
                "num_attention_heads": 12,
            },
        },
        ("tiles",),
        "bfloat16",
    ),
    "qwen2.5-0.5b": Shape(
        "Qwen2ForCausalLM",
        _QWEN | {
            "vocab_size": 151_936, "tie_word_embeddings": True,
            "bos_token_id": 151_643, "eos_token_id": 151_645, "pad_token_id": 151_643,
        },
        files=("qwen", "chat"),
        dtype="bfloat16",
    ),
    "llama-3.2-1b": Shape(
        "LlamaForCausalLM",
        {
            "vocab_size": 128_256, "hidden_size": 2048, "intermediate_size": 8192,
            "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8,
            "max_position_embeddings": 131_072, "rope_theta": 500_000.0, "rms_norm_eps": 1e-5,
            "tie_word_embeddings": True, **_GPT_LIKE,
        },
        dtype="bfloat16",
    ),
    "nllb-600m": Shape(
        "M2M100ForConditionalGeneration", _M2M | {"vocab_size": 256_206}, ("languages",)
    ),
    "nllb-1.3b": Shape(
        "M2M100ForConditionalGeneration",
        _M2M | {
            "vocab_size": 256_206, "encoder_layers": 24, "decoder_layers": 24,
            "encoder_ffn_dim": 8192, "decoder_ffn_dim": 8192,
        },
        ("languages",),
    ),
    "m2m-418m": Shape("M2M100ForConditionalGeneration", _M2M, ("languages",)),
    "opus-mt-tc-big": Shape(
        "MarianMTModel",
        {
            "vocab_size": 54_776, "d_model": 1024, "encoder_layers": 6, "decoder_layers": 6,
            "encoder_attention_heads": 16, "decoder_attention_heads": 16,
            "encoder_ffn_dim": 4096, "decoder_ffn_dim": 4096, "activation_function": "relu",
            "max_position_embeddings": 1024, "scale_embedding": True, "eos_token_id": 0,
            "pad_token_id": 54_775, "decoder_start_token_id": 54_775, "forced_eos_token_id": 0,
        },
        ("marian",),
        "float16",
    ),
    "bart-large": Shape(
        "BartForConditionalGeneration",
        {"vocab_size": 50_264, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
         "decoder_start_token_id": 2, "forced_bos_token_id": None, "normalize_before": False},
    ),
    "flan-t5-large": Shape(
        "T5ForConditionalGeneration",
        {
            "d_model": 1024, "d_ff": 2816, "num_layers": 24, "num_heads": 16,
            "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False,
            "decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 2,
        },
    ),
    "led-base-16384": Shape(
        "LEDForConditionalGeneration",
        {
            "vocab_size": 50_265, "d_model": 768, "encoder_layers": 6, "decoder_layers": 6,
            "encoder_attention_heads": 12, "decoder_attention_heads": 12, "encoder_ffn_dim": 3072,
            "decoder_ffn_dim": 3072, "attention_window": 1024, **_SUMMARY,
        },
    ),
    "pegasus-x-base": Shape(
        "PegasusXForConditionalGeneration",
        {
            "d_model": 768, "encoder_layers": 12, "decoder_layers": 12,
            "encoder_attention_heads": 12, "decoder_attention_heads": 12, "encoder_ffn_dim": 3072,
            "decoder_ffn_dim": 3072, "num_global_tokens": 128, **_SUMMARY,
        },
    ),
    "long-t5-tglobal-base": Shape(
        "LongT5ForConditionalGeneration",
        {
            "d_model": 768, "d_ff": 2048, "num_layers": 12, "num_heads": 12,
            "encoder_attention_type": "transient-global", "feed_forward_proj": "gated-gelu",
            "tie_word_embeddings": False, "decoder_start_token_id": 0, "eos_token_id": 2,
            "initializer_factor": 0.1,
        },
    ),
    "switch-base-8": Shape(
        "SwitchTransformersForConditionalGeneration",
        {
            "d_ff": 3072, "num_sparse_encoder_layers": 6, "num_sparse_decoder_layers": 6,
            "decoder_start_token_id": 0, "eos_token_id": 2,
        },
    ),
    "t5gemma-s-s": Shape(
        "T5GemmaForConditionalGeneration",
        {"encoder": _T5GEMMA, "decoder": _T5GEMMA, "vocab_size": 256_000, **_GPT_LIKE},
        dtype="bfloat16",
    ),
    "bert2bert": Shape(
        "EncoderDecoderModel",
        {
            "encoder": {"model_type": "bert"},
            "decoder": {"model_type": "bert", "is_decoder": True, "add_cross_attention": True},
            "decoder_start_token_id": 1, **_GPT_LIKE,
        },
    ),
    "bigbird-pegasus-large": Shape("BigBirdPegasusForConditionalGeneration", _SUMMARY),
    "wmt19-en-de": Shape(
        "FSMTForConditionalGeneration",
        {
            "encoder_layers": 6, "decoder_layers": 6, "encoder_ffn_dim": 8192,
            "decoder_ffn_dim": 8192,
        },
        ("moses",),
    ),
    "prophetnet-large-uncased": Shape("ProphetNetForConditionalGeneration", _SUMMARY),
    "hf-seamless-m4t-medium": Shape(
        "SeamlessM4TForTextToText",
        {
            "vocab_size": 256_206, "encoder_layers": 12, "decoder_layers": 12,
            "encoder_ffn_dim": 4096, "decoder_ffn_dim": 4096, "pad_token_id": 0,
            "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2,
        },
        ("languages",),
    ),
    "vilt-b32-finetuned-vqa": Shape(
        "ViltForQuestionAnswering", {"num_labels": 3129}, ("tokenizer", "vilt")
    ),
    "lxmert-vqa-uncased": Shape(
        "LxmertForQuestionAnswering", {"num_qa_labels": 3129}, ("tokenizer",)
    ),
    "visualbert-vqa": Shape(
        "VisualBertForQuestionAnswering",
        {"num_labels": 3129, "visual_embedding_dim": 2048},
        ("tokenizer",),
    ),
    "groupvit-gcc-yfcc": Shape(
        "GroupViTModel",
        {"text_config": {"bos_token_id": 1, "eos_token_id": 2}},
        ("tokenizer", "image"),
    ),
    "swin-large-patch4-window7-224": Shape(
        "SwinForImageClassification",
        {"embed_dim": 192, "num_heads": [6, 12, 24, 48], "depths": [2, 2, 18, 2],
         "num_labels": 1000},
        ("image",),
    ),
    "siglip2-so400m-patch14-224": Shape(
        "SiglipModel",
        {
            "text_config": _SO400M | {
                "vocab_size": 256_000, "max_position_embeddings": 64, "projection_size": 1152,
                "bos_token_id": 2, "eos_token_id": 1, "pad_token_id": 0,
            },
            "vision_config": _SO400M | {"image_size": 224, "patch_size": 14},
        },
        ("tokenizer", "siglip"),
    ),
    "xclip-base-patch32": Shape(
        "XCLIPModel",
        {"text_config": {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}},
        ("tokenizer", "videomae"),
    ),
    "align-base": Shape("AlignModel", {}, ("tokenizer", "align")),
    "internvl3-1b": Shape(
        "InternVLForConditionalGeneration",
        {
            "image_token_id": 151_673,
            "text_config": _QWEN | {"vocab_size": 151_674, "tie_word_embeddings": False},
            "vision_config": {"image_size": [448, 448]},
        },
        ("image_token", "internvl"),
        "bfloat16",
    ),
    "llava-onevision-0.5b": Shape(
        "LlavaOnevisionForConditionalGeneration",
        {
            "image_token_index": 151_999,
            "video_token_index": 151_998,
            "text_config": _QWEN | {"vocab_size": 152_000, "tie_word_embeddings": True},
            "vision_config": {
                "model_type": "siglip_vision_model", "hidden_size": 1152,
                "intermediate_size": 4304, "num_hidden_layers": 26, "num_attention_heads": 16,
                "image_size": 384, "patch_size": 14, "vision_use_head": False,
            },
            "vision_aspect_ratio": "anyres_max_9",
            "image_grid_pinpoints": [[384 * row, 384 * column] for row, column in _GRID],
        },
        ("image_token", "onevision"),
        "bfloat16",
    ),
    "paligemma-3b": Shape(
        "PaliGemmaForConditionalGeneration",
        {
            "vocab_size": 257_216,
            "image_token_id": 257_215,
            "projection_dim": 2048,
            "text_config": {
                "model_type": "gemma", "vocab_size": 257_216, "hidden_size": 2048,
                "intermediate_size": 16_384, "num_hidden_layers": 18, "num_attention_heads": 8,
                "num_key_value_heads": 1, "head_dim": 256, "bos_token_id": 1, "eos_token_id": 2,
                "pad_token_id": 0,
            },
            "vision_config": {
                "model_type": "siglip_vision_model", "hidden_size": 1152,
                "intermediate_size": 4304, "num_hidden_layers": 27, "num_attention_heads": 16,
                "image_size": 224, "patch_size": 14, "projection_dim": 2048,
                "vision_use_head": False,
            },
        },
        ("image_token", "image"),
        "bfloat16",
    ),
}  # fmt: skip
