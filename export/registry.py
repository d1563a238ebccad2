"""One line per architecture; its file is imported when it is needed."""

from __future__ import annotations

from importlib import import_module

from export.architecture import Architecture
from inference.errors import CheckpointError

ARCHITECTURES = {  # `model_type` of config.json → module that declares ARCHITECTURE, or module:NAME
    "marian": "export.models.encoder_decoders.bart:MARIAN",
    "vision-encoder-decoder": "export.models.captioners.vision_encoder_decoder",
    "blip": "export.models.captioners.blip",
    "blip-2": "export.models.vision_language.blip_2:BLIP_2",
    "instructblip": "export.models.vision_language.blip_2:INSTRUCTBLIP",
    "florence2": "export.models.captioners.florence2",
    "git": "export.models.captioners.git",
    "idefics": "export.models.vision_language.idefics",
    "llava": "export.models.vision_language.llava:LLAVA",
    "llava_next": "export.models.vision_language.llava:LLAVA_NEXT",
    "llava_onevision": "export.models.vision_language.llava:LLAVA_ONEVISION",
    "qwen2_vl": "export.models.vision_language.qwen2_vl:QWEN2_VL",
    "qwen2_5_vl": "export.models.vision_language.qwen2_vl:QWEN2_5_VL",
    "qwen3_vl": "export.models.vision_language.qwen3_vl",
    "internvl": "export.models.vision_language.internvl",
    "mllama": "export.models.vision_language.mllama",
    "idefics2": "export.models.vision_language.idefics3:IDEFICS2",
    "idefics3": "export.models.vision_language.idefics3:IDEFICS3",
    "smolvlm": "export.models.vision_language.idefics3:IDEFICS3",
    "paligemma": "export.models.vision_language.gemma_images:PALIGEMMA",
    "pix2struct": "export.models.captioners.pix2struct",
    "vilt": "export.models.vision_language.vilt",
    "lxmert": "export.models.vision_language.lxmert",
    "visual_bert": "export.models.vision_language.lxmert:VISUAL_BERT",
    "clip": "export.models.dual_encoders.clip",
    "metaclip_2": "export.models.dual_encoders.clip:METACLIP_2",
    "chinese_clip": "export.models.dual_encoders.bert_clip:CHINESE_CLIP",
    "altclip": "export.models.dual_encoders.bert_clip:ALTCLIP",
    "align": "export.models.dual_encoders.bert_clip:ALIGN",
    "groupvit": "export.models.dual_encoders.groupvit",
    "open_clip": "export.models.dual_encoders.open_clip",
    "siglip": "export.models.dual_encoders.siglip",
    "siglip2": "export.models.dual_encoders.siglip:SIGLIP2",
    "clipseg": "export.models.dual_encoders.clipseg",
    "xclip": "export.models.dual_encoders.xclip",
    "owlvit": "export.models.dual_encoders.owlvit:OWLVIT",
    "owlv2": "export.models.dual_encoders.owlvit:OWLV2",
    "grounding-dino": "export.models.detectors.grounding_dino",
    "vit": "export.models.vision.vit:VIT",
    "deit": "export.models.vision.vit:DEIT",
    "levit": "export.models.vision.levit",
    "resnet": "export.models.vision.resnet",
    "convnext": "export.models.vision.convnext:CONVNEXT",
    "convnextv2": "export.models.vision.convnext:CONVNEXT_V2",
    "beit": "export.models.vision.beit",
    "segformer": "export.models.vision.segformer",
    "swin": "export.models.vision.swin",
    "swinv2": "export.models.vision.swinv2",
    "dinov2": "export.models.vision.vit:DINOV2",
    "dinov2_with_registers": "export.models.vision.vit:DINOV2",
    "gpt2": "export.models.decoders.gpt:GPT2",
    "bert": "export.models.encoders.bert",
    "megatron-bert": "export.models.encoders.bert:MEGATRON",
    "roberta": "export.models.encoders.bert:ROBERTA",
    "xlm-roberta": "export.models.encoders.bert:ROBERTA",
    "camembert": "export.models.encoders.bert:ROBERTA",
    "distilbert": "export.models.encoders.bert:DISTILBERT",
    "electra": "export.models.encoders.bert:ELECTRA",
    "albert": "export.models.encoders.bert:ALBERT",
    "mpnet": "export.models.encoders.bert:MPNET",
    "modernbert": "export.models.encoders.modernbert",
    "openai-gpt": "export.models.decoders.gpt:GPT1",
    "gpt_neo": "export.models.decoders.gpt:GPT_NEO",
    "opt": "export.models.decoders.gpt:OPT",
    "llama": "export.models.decoders.llama:LLAMA",
    "mistral": "export.models.decoders.llama:LLAMA",
    "qwen2": "export.models.decoders.llama:QWEN2",
    "qwen3": "export.models.decoders.llama:QWEN3",
    "smollm3": "export.models.decoders.llama:SMOLLM3",
    "granite": "export.models.decoders.llama:GRANITE",
    "olmo": "export.models.decoders.llama:OLMO",
    "stablelm": "export.models.decoders.llama:STABLELM",
    "phi3": "export.models.decoders.llama:PHI3",
    "starcoder2": "export.models.decoders.llama:STARCODER2",
    "gemma": "export.models.decoders.gemma:GEMMA",
    "gemma2": "export.models.decoders.gemma:GEMMA2",
    "gemma3_text": "export.models.decoders.gemma:GEMMA3",
    "gemma3": "export.models.vision_language.gemma_images:GEMMA3",
    "deberta-v2": "export.models.encoders.deberta",
    "xlnet": "export.models.encoders.xlnet",
    "perceiver": "export.models.encoders.perceiver",
    "rnn-encoder": "export.models.recurrent.rnn_encoder",
    "rnn-lm": "export.models.recurrent.rnn_lm",
    "lstmn-lm": "export.models.recurrent.rnn_lm:LSTMN",
    "rnn-seq2seq": "export.models.recurrent.rnn_seq2seq",
    "translator": "export.models.encoder_decoders.translator",
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
    "fsmt": "export.models.encoder_decoders.bart:FSMT",
    "pegasus_x": "export.models.encoder_decoders.pegasus_x",
    "led": "export.models.encoder_decoders.led",
    "prophetnet": "export.models.encoder_decoders.prophetnet",
    "seamless_m4t": "export.models.encoder_decoders.seamless_m4t",
    "seamless_m4t_v2": "export.models.encoder_decoders.seamless_m4t",
    "switch_transformers": "export.models.encoder_decoders.switch_transformers",
    "t5gemma": "export.models.encoder_decoders.t5gemma",
    "t5gemma2": "export.models.vision_language.gemma_images:T5GEMMA2",
}

REFUSED = {  # `model_type` → why it is in no line above
    "gemma3n": "its layers have four residual streams (AltUp) and share keys and values, and its "
    "image tower is MobileNet-V5",
    "nllb-moe": "`transformers` computes two of its 128 experts, whatever the router chooses",
}


def families() -> tuple[str, ...]:
    """One `model_type` for each declaration: several types may share a network."""
    first = {place: name for name, place in reversed(ARCHITECTURES.items())}
    return tuple(name for name in ARCHITECTURES if first[ARCHITECTURES[name]] == name)


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
        reason = REFUSED.get(model_type) if isinstance(model_type, str) else None
        raise CheckpointError(
            f"model_type {model_type!r} is not supported{f', because {reason}' if reason else ''}; "
            f"supported are: {', '.join(ARCHITECTURES)}"
        )
    module, _, name = ARCHITECTURES[model_type].partition(":")
    return module, name or "ARCHITECTURE"
