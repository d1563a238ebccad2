"""Writes `files/`: tiny random models in the formats of other libraries, and what these answer.

CTranslate2 (of the extra `bench`) writes its own files with its own converters, reads them, and the
tokens that it generates are stored in `answers.json`. Run it again only to add a file:
`python -m tests.export.checkpoint.foreign.write_files`; with the path of an unpacked wheel of
CTranslate2 1.20.1 or 2.24.0 it writes files of the format's older versions. With `timm` it writes
`timm/`, which takes timm (1.0.31) and torchvision: folders as timm's `save_for_hf` writes them, a
picture, the pixels that timm's transformation makes of it and the models' outputs.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from numpy.typing import NDArray
from PIL import Image
from safetensors.torch import load_file, save_file

from tests.export.twins import gather_statistics, make_twin, randomise

FILES = Path(__file__).parent / "files"
ANSWERS = "answers.json"
VOCABULARY, WIDTH, HEADS, MLP, POSITIONS = 40, 12, 2, 20, 24
LANGUAGES = [f"__{code}__" for code in ("en", "ha", "is", "ja", "cs", "ru", "zh", "de")]
"""Of M2M-100's models of WMT 2021, in the order of their ids."""
SOURCES = [["▁a", "w9", "w30"], ["w11"], ["w7", "w8", "w21", "▁b", "w12"]]
TARGETS = [["w8", "w25", "▁ab", "w9"], ["w20", "▁a", "w31", "w13", "w9"], ["w10"]]
BEAMS = 3
LENGTH = 10
REPEATS = {1: 2, BEAMS: 0}
"""Beams → `no_repeat_ngram_size`, which CTranslate2's beams apply in another way."""
_SIZES = {
    "vocab_size": VOCABULARY,
    "d_model": WIDTH,
    "encoder_layers": 1,
    "decoder_layers": 2,
    "encoder_attention_heads": HEADS,
    "decoder_attention_heads": HEADS,
    "encoder_ffn_dim": MLP,
    "decoder_ffn_dim": MLP,
    "max_position_embeddings": POSITIONS,
}
_FAIRSEQ = {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2}
_FAIRSEQ_IDS = {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3}
_T5 = {"d_kv": 6, "d_ff": MLP, "num_layers": 1, "num_heads": HEADS}
_LAST = VOCABULARY - 1
MODELS: dict[str, tuple[str, dict[str, Any], dict[str, int], str | None]] = {
    "marian": (
        "marian",
        _SIZES | {"pad_token_id": _LAST, "decoder_start_token_id": _LAST},
        {"</s>": 0, "<unk>": 1, "<pad>": _LAST},
        None,
    ),
    "m2m-int8": ("m2m_100", _SIZES | _FAIRSEQ, _FAIRSEQ_IDS, "int8"),
    "bart-float16": (
        "bart",
        _SIZES | _FAIRSEQ | {"normalize_before": False},
        _FAIRSEQ_IDS,
        "float16",
    ),
    "t5-int16": (
        "t5",
        {"vocab_size": VOCABULARY, "d_model": WIDTH, "feed_forward_proj": "gated-gelu"} | _T5,
        {"</s>": 1, "<unk>": 2, "<pad>": 0},
        "int16",
    ),
}
"""Name → twin, changes to its configuration, ids of special tokens, quantisation."""


class Tokens:
    """As much of a tokenizer of `transformers` as CTranslate2's converter reads."""

    pad_token, unk_token, eos_token, bos_token = "<pad>", "<unk>", "</s>", "<s>"
    special_tokens_map: Mapping[str, Any] = {}

    def __init__(self, special: Mapping[str, int], languages: list[str]) -> None:
        self.texts = texts(special, languages)
        self.unk_token_id = special["<unk>"]

    def get_vocab(self) -> dict[str, int]:
        """Token → id."""
        return {text: number for number, text in enumerate(self.texts)}

    def convert_ids_to_tokens(self, number: int) -> str:
        """The token of an id."""
        return self.texts[number]


def texts(special: Mapping[str, int], languages: list[str]) -> list[str]:
    """Tokens in the order of their ids; languages are the last ones."""
    found = [f"w{number}" for number in range(VOCABULARY)]
    found[4:7] = ["▁a", "▁b", "▁ab"]
    found[VOCABULARY - len(languages) :] = languages
    for text, number in special.items():
        found[number] = text
    return found


def random(shape: tuple[int, ...], seed: int, centre: float = 0.0) -> torch.Tensor:
    """Values within 1 of zero, or within 0.5 of a centre."""
    generator = torch.Generator().manual_seed(seed)
    values = 2 * torch.rand(shape, generator=generator) - 1
    return centre + values / 2 if centre else values


# -------------------------------------------------------------------------------- OpenNMT-py


def opennmt_tensors() -> dict[str, torch.Tensor]:
    """A Transformer with the names of OpenNMT-py, and two vocabularies."""
    names: dict[str, tuple[int, ...]] = {}
    for side, rows in (("encoder", VOCABULARY), ("decoder", VOCABULARY - 3)):
        names[f"{side}.embeddings.make_embedding.emb_luts.0.weight"] = (rows, WIDTH)
        names[f"{side}.layer_norm.weight"] = names[f"{side}.layer_norm.bias"] = (WIDTH,)
    blocks = {"encoder.transformer.0": ["self_attn"]}
    blocks["decoder.transformer_layers.0"] = ["self_attn", "context_attn"]
    for block, attentions in blocks.items():
        linear = {f"{one}.linear_{x}": (WIDTH, WIDTH) for one in attentions
                  for x in ("query", "keys", "values")}  # fmt: skip
        linear |= {f"{one}.final_linear": (WIDTH, WIDTH) for one in attentions}
        linear |= {"feed_forward.w_1": (MLP, WIDTH), "feed_forward.w_2": (WIDTH, MLP)}
        norms = ["layer_norm"] if len(attentions) == 1 else ["layer_norm_1", "layer_norm_2"]
        for name, shape in linear.items():
            names[f"{block}.{name}.weight"], names[f"{block}.{name}.bias"] = shape, shape[:1]
        for name in (*norms, "feed_forward.layer_norm"):
            names[f"{block}.{name}.weight"] = names[f"{block}.{name}.bias"] = (WIDTH,)
    found = {
        name: random(shape, seed, 1.0 if "norm.weight" in name or "norm_" in name else 0.0)
        for seed, (name, shape) in enumerate(names.items())
    }
    angles = torch.arange(POSITIONS)[:, None] / 10000 ** (torch.arange(0, WIDTH, 2) / WIDTH)
    table = torch.stack([angles.sin(), angles.cos()], dim=2).reshape(POSITIONS, 1, WIDTH)
    return found | {
        f"{side}.embeddings.make_embedding.pe.pe": table for side in ("encoder", "decoder")
    }


def write_opennmt(path: Path) -> None:
    """A checkpoint of OpenNMT-py 3."""
    source = ["<unk>", "<blank>", "<s>", "</s>", *texts({}, [])[4:]]
    options = argparse.Namespace(
        encoder_type="transformer", decoder_type="transformer", position_encoding=True,
        max_relative_positions=0, enc_layers=1, dec_layers=1, heads=HEADS,
        self_attn_type="scaled-dot", pos_ffn_activation_fn="relu", hidden_size=WIDTH,
    )  # fmt: skip
    generator = {
        "weight": random((VOCABULARY - 3, WIDTH), 77),
        "bias": random((VOCABULARY - 3,), 78),
    }
    vocabulary = {"src": source, "tgt": source[:-3]}
    values = {
        "model": opennmt_tensors(),
        "generator": generator,
        "vocab": vocabulary,
        "opt": options,
    }
    torch.save(values, path)


# -------------------------------------------------------------------------------------- Marian


def marian_arrays() -> dict[str, NDArray[np.float32]]:
    """A Transformer with Marian's names, norms behind, one table."""
    arrays: dict[str, tuple[int, ...]] = {"Wemb": (VOCABULARY - 1, WIDTH)}
    arrays["decoder_ff_logit_out_b"] = (1, VOCABULARY - 1)
    for layer, parts in (("encoder_l1", ["self"]), ("decoder_l1", ["self", "context"])):
        for part in parts:
            for leaf in "qkvo":
                arrays[f"{layer}_{part}_W{leaf}"] = (WIDTH, WIDTH)
                arrays[f"{layer}_{part}_b{leaf}"] = (1, WIDTH)
            arrays[f"{layer}_{part}_Wo_ln_scale"] = arrays[f"{layer}_{part}_Wo_ln_bias"] = (
                1,
                WIDTH,
            )
        arrays |= {f"{layer}_ffn_W1": (WIDTH, MLP), f"{layer}_ffn_b1": (1, MLP)}
        arrays |= {f"{layer}_ffn_W2": (MLP, WIDTH), f"{layer}_ffn_b2": (1, WIDTH)}
        arrays |= dict.fromkeys(
            [f"{layer}_ffn_ffn_ln_scale", f"{layer}_ffn_ffn_ln_bias"], (1, WIDTH)
        )
    return {
        name: random(shape, 100 + seed, 1.0 if "scale" in name else 0.0).numpy()
        for seed, (name, shape) in enumerate(arrays.items())
    }


MARIAN_OPTIONS: dict[str, Any] = {
    "type": "transformer", "dim-emb": WIDTH, "enc-depth": 1, "dec-depth": 1,
    "transformer-heads": HEADS, "transformer-dim-ffn": MLP, "transformer-ffn-activation": "swish",
    "transformer-ffn-depth": 2, "transformer-decoder-autoreg": "self-attention",
    "transformer-no-projection": False, "transformer-preprocess": "",
    "transformer-postprocess": "dan", "transformer-postprocess-emb": "d",
    "transformer-postprocess-top": "", "transformer-guided-alignment-layer": "last",
    "transformer-train-position-embeddings": False, "tied-embeddings-all": True,
    "tied-embeddings-src": False, "tied-embeddings": False, "max-length": POSITIONS,
    "dim-vocabs": [VOCABULARY - 1, VOCABULARY - 1],
}  # fmt: skip


def write_marian(folder: Path) -> None:
    """A folder of OPUS-MT's: model, decoder's options, vocabulary, sentencepiece's models."""
    folder.mkdir(exist_ok=True)
    options = yaml.safe_dump(MARIAN_OPTIONS).encode() + b"\0"
    arrays = marian_arrays() | {"special:model.yml": np.frombuffer(options, np.int8)}
    np.savez(folder / "model.npz", **arrays)
    lines = [f"{json.dumps(text, ensure_ascii=False)}: {number}"
             for number, text in enumerate(texts({"</s>": 0, "<unk>": 1}, [])[:-1])]  # fmt: skip
    (folder / "opus.vocab.yml").write_text("\n".join(lines) + "\n", encoding="utf-8")
    decoder = {
        "models": ["model.npz"],
        "vocabs": ["opus.vocab.yml"] * 2,
        "beam-size": 6,
        "normalize": 1,
    }
    (folder / "decoder.yml").write_text(yaml.safe_dump(decoder))


# --------------------------------------------------------------------------------- CTranslate2


def converted(work: Path) -> Iterator[Path]:
    """Writes CTranslate2's folders."""
    from ctranslate2.converters import OpenNMTPyConverter, OpusMTConverter, TransformersConverter

    for name, (twin, changes, special, quantisation) in MODELS.items():
        make_twin(twin, "plain", work, changes)
        _enlarge(work / "model.safetensors")
        converter = TransformersConverter(str(work))
        tokens = Tokens(special, LANGUAGES if twin == "m2m_100" else [])
        converter.load_tokenizer = lambda *given, kept=tokens, **named: kept
        yield Path(converter.convert(str(work / name), quantization=quantisation, force=True))
    torch.serialization.add_safe_globals([argparse.Namespace])
    converter = OpenNMTPyConverter(str(FILES / "opennmt.pt"))
    folder = work / "opennmt-bfloat16"
    yield Path(converter.convert(str(folder), quantization="bfloat16", force=True))
    yield Path(converter.convert(str(work / "opennmt"), force=True))
    yield Path(OpusMTConverter(str(FILES / "opus")).convert(str(work / "opus"), force=True))


def _enlarge(path: Path) -> None:
    """Multiplies matrices, so that answers have more than one token."""
    tensors = load_file(path)
    save_file({name: each * (1 + 2 * (each.ndim > 1)) for name, each in tensors.items()}, path)


def answers(folder: Path) -> dict[str, Any]:
    """What CTranslate2 computes in float32: tokens, and scores of given ones."""
    import ctranslate2

    translator = ctranslate2.Translator(str(folder), compute_type="float32")
    scored = translator.score_batch(SOURCES, TARGETS)
    banned = [["<pad>"]] if folder.name.startswith("t5") else None  # its answers start from it
    found: dict[str, Any] = {"log_probs": [each.log_probs for each in scored]}
    for beams in (1, BEAMS):
        results = translator.translate_batch(
            SOURCES, beam_size=beams, max_decoding_length=LENGTH, num_hypotheses=beams,
            no_repeat_ngram_size=REPEATS[beams], suppress_sequences=banned,
        )  # fmt: skip
        found[f"beams {beams}"] = [each.hypotheses for each in results]
    return found


_OLD = """
import argparse, sys, types, torch
from types import SimpleNamespace as Object
package = types.ModuleType("ctranslate2")
package.__path__ = [sys.argv[1]]
sys.modules["ctranslate2"] = package
torch.serialization.add_safe_globals([argparse.Namespace])
checkpoint = torch.load(sys.argv[2])
checkpoint["generator"] = {f"0.{name}": each for name, each in checkpoint["generator"].items()}
checkpoint["vocab"] = {
    side: Object(fields=[(side, Object(vocab=Object(itos=tokens)))])
    for side, tokens in checkpoint["vocab"].items()
}
torch.load = lambda *given, **named: checkpoint
from ctranslate2.converters.opennmt_py import OpenNMTPyConverter
from ctranslate2.specs.transformer_spec import TransformerSpec
converter = OpenNMTPyConverter(sys.argv[2])
if "/1." in sys.argv[1]:
    converter.convert(sys.argv[3], TransformerSpec((1, 1), 2), quantization="int16", force=True)
else:
    converter.convert(sys.argv[3], quantization="int8", force=True)
"""


def write_old(wheel: Path) -> Path:
    """A file of an older version, by that version's own code."""
    folder = FILES / f"opennmt-{wheel.name}"
    package, source = str(wheel / "ctranslate2"), str(FILES / "opennmt.pt")
    subprocess.run([sys.executable, "-c", _OLD, package, source, str(folder)], check=True)
    return folder


_VIT = {"embed_dim": 12, "depth": 2, "patch_size": 4, "img_size": 16}
_CONVNEXT = {"depths": [1, 2, 1, 1], "dims": [4, 5, 6, 7]}
_STAGES = {"depths": [2, 2], "embed_dim": 6, "patch_size": 2, "window_size": 4, "img_size": 16}
_SMALL, _LARGER = {"input_size": [3, 16, 16]}, {"input_size": [3, 32, 32]}
TIMM: dict[str, tuple[str, dict[str, Any], int, dict[str, Any]]] = {
    "basic": ("resnet18", {"layers": [1, 2, 1, 1], "channels": [4, 4, 5, 6]}, 5, {"crop_pct": 0.9}),
    "bottleneck": (
        "resnet50",
        {"layers": [1, 1, 1, 2], "channels": [2, 2, 3, 3]},
        0,
        {"crop_pct": 0.95},
    ),
    "vit": ("vit_tiny_patch16_224", _VIT, 5, {"interpolation": "lanczos"}),
    "scaled": ("deit3_small_patch16_224", {**_VIT, "num_heads": 3}, 5, {"mean": [0.3, 0.5, 0.6]}),
    "registers": ("vit_small_patch14_reg4_dinov2", _VIT, 0, {"crop_mode": "squash"}),
    "gated": ("vit_giant_patch14_dinov2", {**_VIT, "num_heads": 4}, 5, {}),
    "convnext": ("convnext_tiny", _CONVNEXT, 5, {**_LARGER, "interpolation": "bilinear"}),
    "convnextv2": ("convnextv2_atto", _CONVNEXT, 5, {**_LARGER, "crop_pct": 0.7}),
    "swin": ("swin_tiny_patch4_window7_224", {**_STAGES, "num_heads": [2, 3]}, 5, {}),
    "beit": ("beit_base_patch16_224", {**_VIT, "num_heads": 3}, 5, {"std": [0.5, 0.4, 0.3]}),
}
"""Folder → architecture, its arguments, classes and what differs in `pretrained_cfg`."""


def write_timm(folder: Path) -> None:
    """Folders of timm's, and what it computes."""
    timm, data = import_module("timm"), import_module("timm.data")
    found: dict[str, Any] = {}
    noise = np.random.default_rng(5).integers(0, 256, (31, 22, 3), dtype=np.uint8)
    picture = Image.fromarray(noise).resize((47, 64), Image.Resampling.BICUBIC)
    shutil.rmtree(folder, ignore_errors=True)
    for name, (kind, arguments, classes, recipe) in TIMM.items():
        model = timm.create_model(kind, num_classes=classes, **arguments).eval()
        randomise(model)
        gather_statistics(model, (_SMALL | recipe)["input_size"][1:])
        model.half().float()
        place = folder / name
        place.mkdir(parents=True)
        fields = ("mean", "std", "interpolation", "crop_pct", "crop_mode")
        cfg = {each: model.pretrained_cfg[each] for each in fields if each in model.pretrained_cfg}
        cfg |= {"num_classes": classes, **_SMALL, **recipe}
        config = {"architecture": kind, "num_classes": classes, "model_args": arguments}
        config |= {"num_features": model.num_features, "pretrained_cfg": cfg}
        (place / "config.json").write_text(json.dumps(config), encoding="utf-8")
        halves = {each: value.half() for each, value in model.state_dict().items()}
        save_file(halves, place / "model.safetensors")
        prepared = data.create_transform(**data.resolve_data_config(cfg), is_training=False)(
            picture
        )
        with torch.no_grad():
            found[name] = model(prepared[None])[0].tolist()
        mean, std = (torch.tensor(cfg[each])[:, None, None] for each in ("mean", "std"))
        pixels = ((prepared * std + mean) * 255).round().byte().permute(1, 2, 0)
        Image.fromarray(pixels.numpy()).save(folder / f"{name}.png")
    picture.save(folder / "picture.png")
    (folder / ANSWERS).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    FILES.mkdir(exist_ok=True)
    found = json.loads((FILES / ANSWERS).read_text()) if (FILES / ANSWERS).is_file() else {}
    if len(sys.argv) == 1:
        write_opennmt(FILES / "opennmt.pt")
        write_marian(FILES / "opus")
        with tempfile.TemporaryDirectory() as place:
            for folder in converted(Path(place)):
                found[folder.name] = answers(folder)
                if folder.name not in ("opus", "opennmt"):
                    shutil.rmtree(FILES / folder.name, ignore_errors=True)
                    shutil.copytree(folder, FILES / folder.name)
    if sys.argv[1:] == ["timm"]:
        write_timm(FILES / "timm")
        sys.exit()
    for argument in sys.argv[1:]:
        folder = write_old(Path(argument))
        found[folder.name] = answers(folder)
    (FILES / ANSWERS).write_text(json.dumps(found, ensure_ascii=False), encoding="utf-8")
