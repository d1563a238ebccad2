"""One line per architecture; its file is imported when it is needed."""

from __future__ import annotations

from importlib import import_module

from export.architecture import Architecture
from inference.errors import CheckpointError

ARCHITECTURES = {  # `model_type` of config.json → module that declares ARCHITECTURE, or module:NAME
    "marian": "export.models.encoder_decoders.bart:MARIAN",
    "vision-encoder-decoder": "export.models.captioners.vision_encoder_decoder",
    "blip": "export.models.captioners.blip",
    "blip-2": "export.models.vision_language.blip_2",
    "instructblip": "export.models.vision_language.instructblip",
    "florence2": "export.models.captioners.florence2",
    "git": "export.models.captioners.git",
    "idefics": "export.models.vision_language.idefics",
    "llava": "export.models.vision_language.llava",
    "llava_next": "export.models.vision_language.llava_next",
    "qwen2_vl": "export.models.vision_language.qwen2_vl",
    "qwen2_5_vl": "export.models.vision_language.qwen2_5_vl",
    "idefics3": "export.models.vision_language.idefics3",
    "smolvlm": "export.models.vision_language.idefics3",
    "paligemma": "export.models.vision_language.paligemma",
    "pix2struct": "export.models.captioners.pix2struct",
    "clip": "export.models.dual_encoders.clip",
    "open_clip": "export.models.dual_encoders.open_clip",
    "siglip": "export.models.dual_encoders.siglip",
    "clipseg": "export.models.dual_encoders.clipseg",
    "owlvit": "export.models.dual_encoders.owlvit",
    "owlv2": "export.models.dual_encoders.owlv2",
    "grounding-dino": "export.models.detectors.grounding_dino",
    "vit": "export.models.vision.vit_classifier",
    "deit": "export.models.vision.deit",
    "levit": "export.models.vision.levit",
    "swin": "export.models.vision.swin_classifier",
    "dinov2": "export.models.vision.dinov2",
    "dinov2_with_registers": "export.models.vision.dinov2",
    "gpt2": "export.models.decoders.gpt2_lm",
    "bert": "export.models.encoders.bert",
    "roberta": "export.models.encoders.roberta",
    "xlm-roberta": "export.models.encoders.roberta",
    "camembert": "export.models.encoders.roberta",
    "distilbert": "export.models.encoders.distilbert",
    "electra": "export.models.encoders.electra",
    "albert": "export.models.encoders.albert",
    "mpnet": "export.models.encoders.mpnet",
    "modernbert": "export.models.encoders.modernbert",
    "openai-gpt": "export.models.decoders.gpt1",
    "gpt_neo": "export.models.decoders.gpt_neo",
    "opt": "export.models.decoders.opt",
    "llama": "export.models.decoders.llama",
    "mistral": "export.models.decoders.llama",
    "qwen2": "export.models.decoders.qwen2",
    "qwen3": "export.models.decoders.qwen3",
    "gemma": "export.models.decoders.gemma",
    "gemma2": "export.models.decoders.gemma2",
    "gemma3_text": "export.models.decoders.gemma3",
    "gemma3": "export.models.vision_language.gemma3_images",
    "deberta-v2": "export.models.encoders.deberta",
    "xlnet": "export.models.encoders.xlnet",
    "perceiver": "export.models.encoders.perceiver",
    "rnn-encoder": "export.models.recurrent.rnn_encoder",
    "rnn-lm": "export.models.recurrent.rnn_lm",
    "rnn-seq2seq": "export.models.recurrent.rnn_seq2seq",
    "transformer": "export.models.encoder_decoders.transformer",
    "bahdanau": "export.models.recurrent.bahdanau",
    "show-and-tell": "export.models.captioners.show_and_tell",
    "show-attend-tell": "export.models.captioners.show_attend_tell",
    "cnn-transformer": "export.models.captioners.cnn_transformer",
    "t5": "export.models.encoder_decoders.t5",
    "mt5": "export.models.encoder_decoders.t5",
    "longt5": "export.models.encoder_decoders.longt5",
    "encoder-decoder": "export.models.encoder_decoders.encoder_decoder",
    "umt5": "export.models.encoder_decoders.t5:UMT5",
    "bart": "export.models.encoder_decoders.bart:BART",
    "mbart": "export.models.encoder_decoders.bart:MBART",
    "pegasus": "export.models.encoder_decoders.bart:PEGASUS",
    "m2m_100": "export.models.encoder_decoders.bart:M2M_100",
    "blenderbot": "export.models.encoder_decoders.bart:BLENDERBOT",
    "blenderbot-small": "export.models.encoder_decoders.bart:BLENDERBOT_SMALL",
    "plbart": "export.models.encoder_decoders.bart:PLBART",
    "mvp": "export.models.encoder_decoders.bart:MVP",
    "bigbird_pegasus": "export.models.encoder_decoders.bart:BIGBIRD_PEGASUS",
    "pegasus_x": "export.models.encoder_decoders.pegasus_x",
}


def families() -> tuple[str, ...]:
    """One `model_type` for each declaration: several types may share a network."""
    first = {place: name for name, place in reversed(ARCHITECTURES.items())}
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
    module, name = place_of(model_type)
    declared: Architecture = getattr(import_module(module), name)
    return declared


def module_of(model_type: object) -> str:
    """The module that declares a checkpoint's architecture.

    Raises:
        CheckpointError: it is not in the registry.
    """
    return place_of(model_type)[0]


def place_of(model_type: object) -> tuple[str, str]:
    """(module, name) of the declaration of a checkpoint's architecture.

    Raises:
        CheckpointError: it is not in the registry.
    """
    if not isinstance(model_type, str) or model_type not in ARCHITECTURES:
        raise CheckpointError(
            f"model_type {model_type!r} is not supported; supported are: {', '.join(ARCHITECTURES)}"
        )
    module, _, name = ARCHITECTURES[model_type].partition(":")
    return module, name or "ARCHITECTURE"
