"""Export of full-size checkpoints with random weights: seconds and peak memory of each.

`python -m benchmarks.full_size` writes a checkpoint of each shape as `transformers` saves it, runs
`triptych export` on it in a process of its own, and prints a table in Markdown. Shapes of families
that this version does not support are listed as such. Sizes are those of published checkpoints;
random weights cost what trained ones do.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from export.registry import ARCHITECTURES

EXAMPLES = Path(__file__).parents[1] / "export" / "examples" / "checkpoints"
PHASE = re.compile(r"✓ (.+?) \((\d+\.\d) s\)")
GIB = 1 << 30


@dataclass(frozen=True)
class Shape:
    """One published checkpoint's shape.

    Attributes:
        model: Class of `transformers` that makes the weights.
        fields: Of its `config.json`, where they differ from the class's defaults.
        files: What the folder holds beside weights: `tokenizer`, `marian` or `image`.
        dtype: Of the saved weights, as the published file's.
    """

    model: str
    fields: Mapping[str, Any]
    files: tuple[str, ...] = ("tokenizer",)
    dtype: str = "float32"


_GPT_LIKE = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
SHAPES: dict[str, Shape] = {
    "gpt2-124m": Shape("GPT2LMHeadModel", {"bos_token_id": 2, "eos_token_id": 2}),
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
    "clip-vit-base-patch32": Shape("CLIPModel", {"projection_dim": 512}, ("tokenizer", "image")),
    "vit-gpt2-239m": Shape("VisionEncoderDecoderModel", {}, ("tokenizer", "image")),
    "bert-base": Shape("BertForMaskedLM", {"vocab_size": 30_522}),
    "vit-base-patch16": Shape(
        "ViTForImageClassification", {"num_labels": 1000}, ("image",)
    ),
    "t5-base": Shape(
        "T5ForConditionalGeneration",
        {
            "d_model": 768, "d_ff": 3072, "num_layers": 12, "num_heads": 12,
            "decoder_start_token_id": 0,
        },
    ),
    "smollm2-135m": Shape(
        "LlamaForCausalLM",
        {
            "vocab_size": 49_152, "hidden_size": 576, "intermediate_size": 1536,
            "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3,
            "max_position_embeddings": 8192, "rope_theta": 100_000.0, "rms_norm_eps": 1e-5,
            "tie_word_embeddings": True, **_GPT_LIKE,
        },
        dtype="bfloat16",
    ),
    "qwen2.5-0.5b": Shape(
        "Qwen2ForCausalLM",
        {
            "vocab_size": 151_936, "hidden_size": 896, "intermediate_size": 4864,
            "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2,
            "max_position_embeddings": 32_768, "rope_theta": 1_000_000.0, "rms_norm_eps": 1e-6,
            "tie_word_embeddings": True, **_GPT_LIKE,
        },
        dtype="bfloat16",
    ),
    "nllb-600m": Shape(
        "M2M100ForConditionalGeneration",
        {
            "vocab_size": 256_206, "d_model": 1024, "encoder_layers": 12, "decoder_layers": 12,
            "encoder_ffn_dim": 4096, "decoder_ffn_dim": 4096, "encoder_attention_heads": 16,
            "decoder_attention_heads": 16, "max_position_embeddings": 1024,
            "scale_embedding": True, "decoder_start_token_id": 2,
        },
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Measured:
    """One export.

    Attributes:
        seconds: Wall clock; cpu_seconds does not depend on what else the machine runs.
        phases: Title → seconds.
        peak_bytes: Largest resident set of the exporting process.
        error: Its message, if it failed.
    """

    name: str
    precision: str
    parameters: int
    seconds: float
    cpu_seconds: float
    peak_bytes: int
    phases: Mapping[str, float]
    error: str | None = None


def make_checkpoint(name: str, folder: Path) -> int:
    """Writes a checkpoint of random weights; its number of parameters."""
    import torch
    import transformers

    shape = SHAPES[name]
    torch.manual_seed(0)
    model_class = getattr(transformers, shape.model)
    config = _config(transformers, model_class, shape)
    model = model_class(config)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    model.to(getattr(torch, shape.dtype)).save_pretrained(folder)
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
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {"<pad>": 0, "<s>": 1, "</s>": 2, "[MASK]": 3}
    words |= {f"w{number}": number for number in range(len(words), size)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "mask_token": "[MASK]"}
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", **names}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")


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


_FILES = {"tokenizer": _word_tokenizer, "marian": _marian_tokenizer, "image": _image_recipe}


def measure(name: str, precision: str, folder: Path) -> Measured:
    """Makes the checkpoint and exports it, each in a process of its own."""
    checkpoint = folder / "checkpoint"
    checkpoint.mkdir(parents=True)
    made = _process([sys.executable, "-m", "benchmarks.full_size", "--make", name, str(checkpoint)])
    parameters = int(made.output.splitlines()[-1])
    command = [sys.executable, "-m", "export.cli", str(checkpoint), "--name", name]
    started_s = time.perf_counter()
    done = _process(
        [*command, "--repository", str(folder / "repository"), "--precision", precision],
        is_checked=False,
    )
    return Measured(
        name=name,
        precision=precision,
        parameters=parameters,
        seconds=time.perf_counter() - started_s,
        cpu_seconds=done.cpu_seconds,
        peak_bytes=done.peak_bytes,
        phases={title: float(seconds) for title, seconds in PHASE.findall(done.output)},
        error=None if done.code == 0 else done.output.strip().splitlines()[-1],
    )


@dataclass(frozen=True)
class _Done:
    output: str
    code: int
    peak_bytes: int
    cpu_seconds: float


def _process(command: Sequence[str], *, is_checked: bool = True) -> _Done:
    """Runs a command; its output, exit code and peak memory."""
    environment = os.environ | {"COLUMNS": "200", "NO_COLOR": "1"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        output = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if is_checked and process.returncode:
        raise RuntimeError(output)
    return _Done(
        output, process.returncode, usage.ru_maxrss * 1024, usage.ru_utime + usage.ru_stime
    )


def supported(name: str) -> bool:
    """Whether the registry has the family of a shape."""
    import transformers

    model_class = getattr(transformers, SHAPES[name].model)
    return model_class.config_class.model_type in ARCHITECTURES


def row(measured: Measured) -> str:
    """One line of the table."""
    if measured.error:
        return f"| {measured.name} | {measured.precision} | {measured.error} |"
    longest = sorted(measured.phases.items(), key=lambda item: -item[1])[:3]
    phases = ", ".join(f"{_short(title)} {seconds:.0f} s" for title, seconds in longest)
    return (
        f"| {measured.name} | {measured.parameters / 1e6:.0f} M | {measured.precision} | "
        f"{measured.seconds:.0f} s | {measured.cpu_seconds:.0f} s | "
        f"{measured.peak_bytes / GIB:.1f} GiB | {phases} |"
    )


def _short(title: str) -> str:
    return "reading" if title.startswith("reading") else title.removesuffix(" to ONNX")


def main() -> None:
    """Measures the chosen shapes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(SHAPES)}; default: all")
    parser.add_argument("--precision", nargs="*", default=["fp32"], help="fp32, int8")
    parser.add_argument("--scratch", type=Path, help="parent of temporary folders (some GB)")
    parser.add_argument("--make", nargs=2, metavar=("NAME", "FOLDER"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.make:
        print(make_checkpoint(options.make[0], Path(options.make[1])))
        return
    print("| checkpoint | parameters | precision | wall | CPU | peak memory | longest phases |")
    print("|---|---|---|---|---|---|---|")
    for name in options.names or SHAPES:
        if not supported(name):
            print(f"| {name} | not supported by this version |", flush=True)
            continue
        for precision in options.precision:
            with tempfile.TemporaryDirectory(dir=options.scratch) as folder:
                print(row(measure(name, precision, Path(folder))), flush=True)


if __name__ == "__main__":
    main()
