"""Checkpoints of full size with random weights, and their conversion for each engine.

Weights do not matter for speed, shapes do: GPT-2 of 124M parameters, Marians of the shapes of
opus-mt (74M) and of browsers' translators (17M), a captioner of ViT-B/16 and GPT-2, TrOCR and BLIP
of base size, Qwen2.5-0.5B, Llama 3.2 1B, and the models of `questions`. Lengths are forced, so that
every engine does the same work. Everything is created once, in a cache folder.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers

from benchmarks.full_size.shapes import SHAPES, make_checkpoint
from benchmarks.local_model import lowered
from benchmarks.speed.questions import make_qwen, make_smolvlm
from export.checkpoint.checkpoint import open_checkpoint
from export.graphs.source_model import SourceModel
from export.graphs.to_onnx import to_onnx
from export.pipeline.manifest import Request, build_manifest, content_hash
from export.pipeline.publish import find_published, publish, staging
from export.precision import Precision, Runtime
from inference.bundle.manifest import Bundle
from inference.bundle.reader import newest_bundle

EXAMPLES = Path(__file__).parents[2] / "examples" / "checkpoints"
OURS = {"triptych": Runtime.ONNXRUNTIME, "triptych-openvino": Runtime.OPENVINO}
"""Our engine, by the names that tables have for its runtimes."""
SIDES = {"captioner-239m": 224, "trocr-base": 384, "blip-base": 384}
"""Pixels of the side of a captioner's images."""
MARIAN_VOCABULARY = 58_101
GPT2_VOCABULARY = 50_257


def checkpoint(name: str, cache: Path) -> Path:
    """A folder in Hugging Face format: an example's, or one of random weights.

    Args:
        name: One of `MAKERS`, or an example's name.
    """
    if name in MAKERS:
        folder = cache / "checkpoints" / name
        if not (folder / "config.json").is_file():
            torch.manual_seed(0)
            MAKERS[name](folder)
        return folder
    return EXAMPLES / name


def _marian(
    folder: Path,
    vocabulary: int = MARIAN_VOCABULARY,
    width: int = 512,
    decoder_layers: int = 6,
    ffn_width: int = 2048,
) -> None:
    config = transformers.MarianConfig(
        vocab_size=vocabulary,
        d_model=width,
        encoder_layers=6,
        decoder_layers=decoder_layers,
        encoder_attention_heads=8,
        decoder_attention_heads=8,
        encoder_ffn_dim=ffn_width,
        decoder_ffn_dim=ffn_width,
        activation_function="swish",
        max_position_embeddings=512,
        scale_embedding=True,
        static_position_embeddings=True,
        init_std=0.05,
        eos_token_id=0,
        pad_token_id=vocabulary - 1,
        decoder_start_token_id=vocabulary - 1,
        forced_eos_token_id=None,
    )
    model = transformers.MarianMTModel(config)
    model.generation_config.num_beams = 1
    model.save_pretrained(folder)
    example = EXAMPLES / "example-es-en"
    for file in ("source.spm", "target.spm", "tokenizer_config.json"):
        shutil.copy(example / file, folder)
    pieces = json.loads((example / "vocab.json").read_text(encoding="utf-8"))
    del pieces["<pad>"]
    pieces |= {f"w{i}": i for i in range(len(pieces), config.pad_token_id)}
    pieces["<pad>"] = config.pad_token_id
    (folder / "vocab.json").write_text(json.dumps(pieces), encoding="utf-8")


def _gpt2(folder: Path) -> None:
    config = transformers.GPT2Config(vocab_size=GPT2_VOCABULARY, initializer_range=0.05)
    transformers.GPT2LMHeadModel(config).save_pretrained(folder)
    _byte_tokenizer(folder)


def _captioner(folder: Path) -> None:
    decoder = transformers.GPT2Config(
        vocab_size=GPT2_VOCABULARY, add_cross_attention=True, is_decoder=True
    )
    config = transformers.VisionEncoderDecoderConfig.from_encoder_decoder_configs(
        transformers.ViTConfig(),
        decoder,
        decoder_start_token_id=GPT2_VOCABULARY - 1,
        pad_token_id=GPT2_VOCABULARY - 1,
        eos_token_id=GPT2_VOCABULARY - 1,
    )
    transformers.VisionEncoderDecoderModel(config).save_pretrained(folder)
    _captioner_files(folder, GPT2_VOCABULARY, SIDES["captioner-239m"])


def _trocr(folder: Path) -> None:
    decoder = transformers.TrOCRConfig(cross_attention_hidden_size=768, init_std=0.05)
    config = transformers.VisionEncoderDecoderConfig.from_encoder_decoder_configs(
        transformers.ViTConfig(image_size=384, qkv_bias=False),
        decoder,
        decoder_start_token_id=2,
        pad_token_id=1,
        eos_token_id=2,
    )
    transformers.VisionEncoderDecoderModel(config).save_pretrained(folder)
    _captioner_files(folder, decoder.vocab_size, SIDES["trocr-base"])


def _blip(folder: Path) -> None:
    config = transformers.BlipConfig(
        text_config={"num_attention_heads": 12, "initializer_range": 0.05},
        vision_config={"initializer_range": 0.02},
    )
    transformers.BlipForConditionalGeneration(config).save_pretrained(folder)
    _captioner_files(folder, config.text_config.vocab_size, SIDES["blip-base"])


def _captioner_files(folder: Path, vocabulary: int, side: int) -> None:
    _byte_tokenizer(folder, vocabulary)
    recipe = EXAMPLES / "example-captioner" / "preprocessor_config.json"
    size = {"size": {"height": side, "width": side}}
    fields = json.loads(recipe.read_text(encoding="utf-8")) | size
    (folder / recipe.name).write_text(json.dumps(fields), encoding="utf-8")


def _byte_tokenizer(folder: Path, vocabulary: int = GPT2_VOCABULARY) -> None:
    """The example captioner's tokenizer, padded with unused tokens."""
    example = EXAMPLES / "example-captioner"
    shutil.copy(example / "tokenizer_config.json", folder)
    tokenizer = json.loads((example / "tokenizer.json").read_text(encoding="utf-8"))
    words = tokenizer["model"]["vocab"]
    words |= {f"w{i}": i for i in range(len(words), vocabulary)}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")


MAKERS: dict[str, Callable[[Path], object]] = {
    **{name: partial(make_checkpoint, name) for name in SHAPES},
    "marian-74m": _marian,
    "marian-17m": partial(_marian, vocabulary=32_000, width=256, decoder_layers=2, ffn_width=1536),
    "gpt2-124m": _gpt2,
    "captioner-239m": _captioner,
    "trocr-base": _trocr,
    "blip-base": _blip,
    "qwen2-vl-224m": make_qwen,
    "smolvlm-256m": make_smolvlm,
}


def bundle(
    name: str, precision: str, cache: Path, runtime: Runtime = Runtime.ONNXRUNTIME
) -> Bundle:
    """A checkpoint as `triptych export` makes it, without the gate.

    The gate decodes with PyTorch for minutes at these sizes, and its subject, what the graphs
    compute, does not depend on the weights. What another exporter made is made again.
    """
    is_first = runtime is Runtime.ONNXRUNTIME
    repository = cache / (precision if is_first else f"{runtime}-{precision}")
    source = open_checkpoint(str(checkpoint(name, cache)))
    if find_published(repository, name, content_hash(source, Request(name))) is not None:
        return newest_bundle(repository, name)
    shutil.rmtree(repository / name, ignore_errors=True)
    if precision == Precision.FP32 and is_first:
        return _export(name, repository, cache)
    return lowered(bundle(name, Precision.FP32, cache), Precision(precision), repository, runtime)


def _export(name: str, repository: Path, cache: Path) -> Bundle:
    model = SourceModel.open(checkpoint(name, cache))
    graphs = model.graphs()
    manifest, _ = build_manifest(Request(name), 1, model, graphs)
    with staging(repository) as stage:
        for lowering in graphs.lowerings.values():
            to_onnx(lowering, stage.part(name) / lowering.graph.file)
        for file, content in model.preprocessing.files.items():
            (stage.part(name) / file).write_bytes(content)
        publish(stage, repository, manifest)
    return newest_bundle(repository, name)


def ctranslate2_folder(name: str, precision: str, cache: Path) -> Path:
    """A checkpoint as CTranslate2's own converter makes it."""
    folder = cache / "ctranslate2" / f"{name}-{precision}"
    if not folder.is_dir():
        from ctranslate2.converters import TransformersConverter

        class Converter(TransformersConverter):
            """Words are `w0`, `w1`, …: engines take ids here, not text."""

            def load_tokenizer(self, *args: Any, **options: Any) -> Words:
                config = json.loads((checkpoint(name, cache) / "config.json").read_text())
                return Words(config)

        kinds = {"fp32": "float32", "int8": "int8"}
        converter = Converter(str(checkpoint(name, cache)))
        converter.convert(str(folder), quantization=kinds[precision], force=True)
    return folder


class Words:
    """A minimal tokenizer for CTranslate2's converter: one word per id.

    Args:
        config: The checkpoint's `config.json`.
    """

    unk_token, unk_token_id = "w1", 1

    def __init__(self, config: dict[str, Any]) -> None:
        self._size, self._is_marian = config["vocab_size"], config["model_type"] == "marian"
        self.eos_token = self.bos_token = self.pad_token = f"w{config.get('eos_token_id') or 0}"
        self.special_tokens_map: dict[str, Any] = {}

    def convert_ids_to_tokens(self, token: int) -> str:
        """The word of an id."""
        return f"w{token}"

    def get_vocab(self) -> dict[str, int]:
        """Every word and its id; Marian's padding, the last, has the name that is expected."""
        names = {f"w{i}": i for i in range(self._size)}
        if self._is_marian:
            del names[f"w{self._size - 1}"]
            names["<pad>"] = self._size - 1
        return names
