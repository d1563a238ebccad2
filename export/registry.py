"""One line per architecture; its file is imported when it is needed."""

from __future__ import annotations

from importlib import import_module

from export.architecture import Architecture
from inference.errors import CheckpointError

ARCHITECTURES = {  # `model_type` of config.json → module that declares ARCHITECTURE
    "marian": "export.models.marian",
    "vision-encoder-decoder": "export.models.vision_encoder_decoder",
    "blip": "export.models.blip",
    "blip-2": "export.models.blip_2",
    "instructblip": "export.models.instructblip",
    "florence2": "export.models.florence2",
    "git": "export.models.git",
    "idefics": "export.models.idefics",
    "llava": "export.models.llava",
    "llava_next": "export.models.llava_next",
    "qwen2_vl": "export.models.qwen2_vl",
    "qwen2_5_vl": "export.models.qwen2_5_vl",
    "idefics3": "export.models.idefics3",
    "smolvlm": "export.models.idefics3",
    "paligemma": "export.models.paligemma",
    "pix2struct": "export.models.pix2struct",
    "clip": "export.models.clip",
    "open_clip": "export.models.open_clip",
    "siglip": "export.models.siglip",
    "clipseg": "export.models.clipseg",
    "owlvit": "export.models.owlvit",
    "owlv2": "export.models.owlv2",
    "vit": "export.models.vit_classifier",
    "deit": "export.models.deit",
    "levit": "export.models.levit",
    "swin": "export.models.swin_classifier",
    "dinov2": "export.models.dinov2",
    "dinov2_with_registers": "export.models.dinov2",
    "gpt2": "export.models.gpt2_lm",
    "bert": "export.models.bert",
    "roberta": "export.models.roberta",
    "xlm-roberta": "export.models.roberta",
    "camembert": "export.models.roberta",
    "distilbert": "export.models.distilbert",
    "electra": "export.models.electra",
    "albert": "export.models.albert",
    "mpnet": "export.models.mpnet",
    "modernbert": "export.models.modernbert",
    "openai-gpt": "export.models.gpt1",
    "gpt_neo": "export.models.gpt_neo",
    "opt": "export.models.opt",
    "llama": "export.models.llama",
    "mistral": "export.models.llama",
    "qwen2": "export.models.qwen2",
    "qwen3": "export.models.qwen3",
    "gemma": "export.models.gemma",
    "gemma2": "export.models.gemma2",
    "gemma3_text": "export.models.gemma3",
    "gemma3": "export.models.gemma3_images",
    "deberta-v2": "export.models.deberta",
    "xlnet": "export.models.xlnet",
    "perceiver": "export.models.perceiver",
    "rnn-encoder": "export.models.rnn_encoder",
    "rnn-lm": "export.models.rnn_lm",
    "rnn-seq2seq": "export.models.rnn_seq2seq",
    "transformer": "export.models.transformer",
    "bahdanau": "export.models.bahdanau",
    "show-and-tell": "export.models.show_and_tell",
    "show-attend-tell": "export.models.show_attend_tell",
    "cnn-transformer": "export.models.cnn_transformer",
    "t5": "export.models.t5",
    "mt5": "export.models.t5",
    "bart": "export.models.bart",
    "mbart": "export.models.mbart",
    "pegasus": "export.models.pegasus",
    "m2m_100": "export.models.m2m_100",
}


def families() -> tuple[str, ...]:
    """One `model_type` for each module: several types may share a network."""
    first = {module: name for name, module in reversed(ARCHITECTURES.items())}
    return tuple(name for name in ARCHITECTURES if first[ARCHITECTURES[name]] == name)


def tasks() -> tuple[str, ...]:
    """Every task that some architecture can be exported for."""
    declared = (architecture(name).tasks for name in families())
    return tuple(dict.fromkeys(task for names in declared for task in names))


def architecture(model_type: object) -> Architecture:
    """The architecture of a checkpoint.

    Raises:
        CheckpointError: it is not in the registry.
    """
    declared: Architecture = import_module(module_of(model_type)).ARCHITECTURE
    return declared


def module_of(model_type: object) -> str:
    """The module that declares a checkpoint's architecture.

    Raises:
        CheckpointError: it is not in the registry.
    """
    if not isinstance(model_type, str) or model_type not in ARCHITECTURES:
        raise CheckpointError(
            f"model_type {model_type!r} is not supported; supported are: {', '.join(ARCHITECTURES)}"
        )
    return ARCHITECTURES[model_type]
