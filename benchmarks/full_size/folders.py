"""Checkpoints of full size with random weights, in the folders that `transformers` writes.

Generators repeat a token: of NLLB's shape it is the target's language, whose text is empty.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from itertools import chain, islice, product
from pathlib import Path
from typing import Any

from benchmarks.full_size.shapes import SHAPES, Shape

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
        size = getattr(part, "vocab_size", None)
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


def _image_recipe(folder: Path, size: int) -> None:
    """224 × 224 pixels."""
    text = (EXAMPLES / "example-captioner" / "preprocessor_config.json").read_text(encoding="utf-8")
    recipe = json.loads(text) | {"size": {"height": 224, "width": 224}}
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


_FILES = {
    "tokenizer": _word_tokenizer,
    "languages": _language_tokenizer,
    "image_token": _image_tokenizer,
    "tiles": _tile_files,
    "qwen": _qwen_tokenizer,
    "marian": _marian_tokenizer,
    "image": _image_recipe,
    "sentences": _sentence_modules,
    "chat": _chat_template,
}
