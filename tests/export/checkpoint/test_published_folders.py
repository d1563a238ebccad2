"""Folders as they are published: weights, special tokens, labels.

One line is one checkpoint of the hub, or one kind of them; the twin's file gets its names. At the
end: folders as `transformers` saves them today are read as those of older releases.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.models import BPE
from torch import Tensor
from transformers import ViTConfig, ViTForImageClassification
from transformers.modeling_outputs import ImageClassifierOutput
from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil
from transformers.pipelines import ImageClassificationPipeline

from export.checkpoint.checkpoint import Checkpoint, open_checkpoint
from export.checkpoint.generation_defaults import generation_defaults
from export.checkpoint.labels import activation, labels
from export.graphs.source_model import SourceModel
from export.pipeline.cli import export
from export.pipeline.manifest import Request, build_manifest
from export.registry import architecture, families
from inference.bundle.manifest import Limits
from inference.bundle.reader import newest_bundle
from inference.errors import CheckpointError
from tests.export.conftest import Twins
from tests.export.saved_folders import make_older, save
from tests.export.twin import EXPORTED
from tests.export.twins import make_twin, twin_of

IDS = ("pad_token_id", "eos_token_id", "bos_token_id", "decoder_start_token_id")


def published(folder: Path, name: str, twins: Twins, **settings: object) -> Checkpoint:
    """A twin's folder without special tokens in its files, but the given ones."""
    copied = folder / name
    shutil.copytree(twins(name, EXPORTED).checkpoint.folder, copied)
    config = json.loads((copied / "config.json").read_text())
    kept = {key: value for key, value in config.items() if key not in IDS}
    (copied / "config.json").write_text(json.dumps(kept))
    (copied / "generation_config.json").write_text('{"_from_model_config": true}')
    (copied / "tokenizer_config.json").write_text(json.dumps(settings))
    model = BPE({"<unk>": 0, "a": 1, "b": 2}, [], unk_token="<unk>")
    Tokenizer(model).save(str(copied / "tokenizer.json"))
    return open_checkpoint(str(copied))


def test_gpt1_without_padding_and_end_token_is_accepted(tmp_path: Path, twins: Twins) -> None:
    """`openai-community/openai-gpt` names neither in any of its files."""
    checkpoint = published(tmp_path, "openai-gpt", twins, model_max_length=512)
    prepared = SourceModel(checkpoint, architecture("openai-gpt")).preprocessing
    assert prepared.tokenizer.eos_token_id is None
    rules, warnings = generation_defaults(checkpoint, Limits(max_total_tokens=64), has_source=False)
    assert (rules.pad_token_id, rules.eos_token_ids, warnings) == (0, (), [])


@pytest.mark.parametrize("name", ["t5", "bart"])
def test_padding_token_of_a_model_with_a_source_is_required(
    name: str, tmp_path: Path, twins: Twins
) -> None:
    checkpoint = published(tmp_path, name, twins)
    with pytest.raises(CheckpointError, match="pad_token_id"):
        generation_defaults(checkpoint, Limits(max_total_tokens=64), has_source=True)


WEIGHTS = "model.safetensors"
POSITIONS = "embeddings.position_ids"
OF_TENSORFLOW = ((r"LayerNorm\.weight", "LayerNorm.gamma"), (r"LayerNorm\.bias", "LayerNorm.beta"))
T5 = (
    "encoder.embed_tokens.weight=shared.weight decoder.embed_tokens.weight=shared.weight "
    "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
)
SEQ2SEQ = (
    "model.encoder.embed_tokens.weight=model.shared.weight lm_head.weight=model.shared.weight "
    "model.decoder.embed_tokens.weight=model.shared.weight"
)
Renames = tuple[tuple[str, str], ...]

FORMS: dict[str, tuple[str, str, Renames, str]] = {
    "google-bert/bert-base-uncased": (
        "bert", "masked", OF_TENSORFLOW,
        f"bert.pooler.dense.weight cls.seq_relationship.weight bert.{POSITIONS} "
        "cls.predictions.decoder.weight=bert.embeddings.word_embeddings.weight",
    ),
    "sentence-transformers/all-MiniLM-L6-v2": ("bert", "plain", (), POSITIONS),
    "an encoder with the masked head": (
        "bert", "plain", ((r"^", "bert."),), "cls.predictions.bias",
    ),
    "dslim/bert-base-NER": ("bert", "tags", (), f"bert.{POSITIONS} bert.pooler.dense.weight"),
    "FacebookAI/roberta-base": (
        "roberta", "masked", (),
        f"roberta.{POSITIONS} roberta.pooler.dense.weight lm_head.decoder.bias=lm_head.bias "
        "lm_head.decoder.weight=roberta.embeddings.word_embeddings.weight",
    ),
    "roberta of TensorFlow": ("roberta", "masked", OF_TENSORFLOW, ""),
    "FacebookAI/roberta-large-mnli": (
        "roberta", "classes", (), f"roberta.{POSITIONS} roberta.pooler.dense.weight",
    ),
    "almanach/camembert-base": ("roberta", "french", (), f"roberta.{POSITIONS}"),
    "distilbert/distilbert-base-uncased": (
        "distilbert", "masked", (),
        "vocab_projector.weight=distilbert.embeddings.word_embeddings.weight",
    ),
    "albert/albert-base-v2": (
        "albert", "masked", (),
        f"albert.{POSITIONS} albert.pooler.weight predictions.decoder.bias=predictions.bias "
        "predictions.decoder.weight=albert.embeddings.word_embeddings.weight",
    ),
    "microsoft/mpnet-base": (
        "mpnet", "masked", (), f"mpnet.{POSITIONS} lm_head.decoder.bias=lm_head.bias",
    ),
    "sentence-transformers/all-mpnet-base-v2": (
        "mpnet", "odd", (), f"{POSITIONS}",
    ),
    "google/electra-base-discriminator": (
        "electra", "odd", ((r"^", "electra."),),
        f"electra.{POSITIONS} discriminator_predictions.dense.weight",
    ),
    "microsoft/deberta-v3-base": (
        "deberta-v2", "v3", ((r"^", "deberta."),),
        f"deberta.{POSITIONS} lm_predictions.lm_head.bias mask_predictions.classifier.weight",
    ),
    "xlnet/xlnet-base-cased": (
        "xlnet", "odd", ((r"^", "transformer."),), "lm_loss.weight",
    ),
    "EleutherAI/gpt-neo-125m": (
        "gpt_neo", "plain", (),
        "transformer.h.0.attn.attention.bias transformer.h.0.attn.attention.masked_bias",
    ),
    "gpt-neo without its head": ("gpt_neo", "plain", ((r"^transformer\.", ""),), ""),
    "openai-community/openai-gpt": (
        "openai-gpt", "plain", ((r"^transformer\.", ""),), "h.0.attn.bias position_ids",
    ),
    "facebook/opt-125m": (
        "opt", "plain", ((r"^model\.", ""),),
        "decoder.version lm_head.weight=decoder.embed_tokens.weight",
    ),
    "TinyLlama/TinyLlama-1.1B-Chat-v1.0": (
        "llama", "plain", (), "model.layers.0.self_attn.rotary_emb.inv_freq",
    ),
    "google-t5/t5-small": ("t5", "plain", (), T5),
    "google/mt5-small": ("t5", "mt5", (), T5),
    "facebook/bart-base": (
        "bart", "plain", ((r"^model\.", ""),), "encoder.version decoder.version",
    ),
    "facebook/bart-large-cnn": (
        "bart", "plain", (), f"{SEQ2SEQ} model.encoder.version model.decoder.version",
    ),
    "google/pegasus-xsum": ("pegasus", "plain", (), SEQ2SEQ),
    "facebook/mbart-large-50-many-to-many-mmt": ("mbart", "plain", (), SEQ2SEQ),
    "facebook/m2m100_418M": (
        "m2m_100", "plain", (),
        f"{SEQ2SEQ} model.encoder.embed_positions.weights model.decoder.embed_positions.weights",
    ),
    "facebook/wmt19-en-ru": ("fsmt", "plain", (), ""),
    "facebook/seamless-m4t-v2-large": (
        "seamless_m4t", "v2", (),
        "speech_encoder.feature_projection.projection.weight t2u_model.lm_head.weight "
        "vocoder.dur_predictor.conv1.bias",
    ),
    "allenai/led-large-16384-arxiv": ("led", "plain", (), SEQ2SEQ.replace("model.", "led.")),
    "google/switch-base-8": (
        "switch_transformers", "plain", (),
        "lm_head.weight=shared.weight encoder.embed_tokens.weight=shared.weight "
        "decoder.embed_tokens.weight=shared.weight",
    ),
    "google/vit-base-patch16-224": ("vit", "plain", (), "vit.pooler.dense.weight"),
    "microsoft/swin-tiny-patch4-window7-224": (
        "swin", "plain", (),
        "swin.encoder.layers.0.blocks.0.attention.self.relative_position_index",
    ),
    "openai/clip-vit-base-patch32": (
        "clip", "plain", (), f"text_model.{POSITIONS} vision_model.{POSITIONS}",
    ),
    "OFA-Sys/chinese-clip-vit-base-patch16": (
        "chinese_clip", "plain", (),
        f"text_model.{POSITIONS} vision_model.{POSITIONS} text_model.pooler.dense.weight",
    ),
    "BAAI/AltCLIP": (
        "altclip", "plain", ((r"^vision_model\.encoder\.layer\.", "vision_model.encoder.layers."),),
        f"text_model.roberta.{POSITIONS} vision_model.{POSITIONS}",
    ),
    "nlpconnect/vit-gpt2-image-captioning": (
        "vision-encoder-decoder", "plain", (),
        "decoder.transformer.h.0.attn.masked_bias "
        "decoder.transformer.h.0.crossattention.bias "
        "decoder.lm_head.weight=decoder.transformer.wte.weight",
    ),
    "a captioner of TensorFlow's BERT": ("vision-encoder-decoder", "bert", OF_TENSORFLOW, ""),
    "microsoft/trocr-base-printed": (
        "vision-encoder-decoder", "trocr", (),
        "decoder.output_projection.weight=decoder.model.decoder.embed_tokens.weight",
    ),
    "naver-clova-ix/donut-base": (
        "vision-encoder-decoder", "donut", (),
        "decoder.lm_head.weight=decoder.model.decoder.embed_tokens.weight",
    ),
    "Salesforce/blip-image-captioning-base": (
        "blip", "plain", (),
        f"text_decoder.bert.{POSITIONS} "
        "text_decoder.cls.predictions.decoder.bias=text_decoder.cls.predictions.bias",
    ),
    "microsoft/git-base-coco": (
        "git", "plain", (), f"git.{POSITIONS} git.image_encoder.vision_model.{POSITIONS}",
    ),
}  # fmt: skip
"""Checkpoint → architecture, its twin's configuration, new names, and further tensors: any, or a
copy of another one (`name=other`)."""


def _parameters(name: str, folder: Path) -> dict[str, Tensor]:
    return SourceModel(open_checkpoint(str(folder)), architecture(name)).network.state_dict()


def _publish(folder: Path, renames: Renames, further: str) -> None:
    """Gives the folder's weight file the names of a published one."""
    tensors = {}
    for name, tensor in load_file(folder / WEIGHTS).items():
        for pattern, replacement in renames:
            name = re.sub(pattern, replacement, name)
        tensors[name] = tensor
    for entry in further.split():
        name, _, other = entry.partition("=")
        assert name not in tensors
        tensors[name] = tensors[other].clone() if other else torch.arange(4)[None]
    save_file(tensors, folder / WEIGHTS)


@pytest.mark.parametrize("published", FORMS)
def test_published_weights_are_read_as_those_of_the_twin(published: str, tmp_path: Path) -> None:
    name, config, renames, further = FORMS[published]
    make_twin(name, config, tmp_path)
    wanted = _parameters(name, tmp_path)
    _publish(tmp_path, renames, further)
    found = _parameters(name, tmp_path)
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[each], wanted[each]) for each in wanted)


NAMES = {0: "cat", 1: "dog", 2: "owl"}
SCORES = {
    "none": lambda logits: logits,
    "sigmoid": torch.sigmoid,
    "softmax": lambda logits: logits.softmax(dim=-1),
}


@pytest.mark.parametrize(
    "fields",
    [
        {"id2label": NAMES},
        {"id2label": NAMES, "problem_type": "single_label_classification"},
        {"id2label": NAMES, "problem_type": "multi_label_classification"},
        {"id2label": NAMES, "problem_type": "regression"},
        {"id2label": {0: "good"}},
        {"id2label": {0: "good"}, "problem_type": "regression"},
        {},
    ],
)
def test_scores_are_those_of_the_pipeline(fields: dict[str, Any]) -> None:
    config = ViTConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=1, **fields)
    model = ViTForImageClassification(config)
    pipeline = ImageClassificationPipeline(model, image_processor=ViTImageProcessorPil())
    logits = torch.tensor([[0.3, -1.2, 2.5][: config.num_labels]])
    wanted = pipeline.postprocess(ImageClassifierOutput(logits=logits), top_k=9)
    scores = SCORES[activation(fields)](logits[0]).tolist()
    given = dict(zip(labels(fields), scores, strict=True))
    assert given == pytest.approx({item["label"]: item["score"] for item in wanted}, abs=1e-6)


def test_labels_are_ordered_by_number_and_may_repeat() -> None:
    """Two classes of ImageNet are called crane."""
    names = {str(number): f"class {number}" for number in (10, 2, 1, 0, *range(3, 10))}
    assert labels({"id2label": names})[9:] == ("class 9", "class 10")
    assert labels({"id2label": {"0": "crane", "1": "crane"}}) == ("crane", "crane")


@pytest.mark.parametrize(
    "values", [{"id2label": {}}, {"id2label": ["a"]}, {"id2label": {1: "a"}}, {"num_labels": 0}]
)
def test_unusable_labels_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError, match=r"(id2label|num_labels) must"):
        labels(values)


def test_unknown_problem_is_refused() -> None:
    with pytest.raises(CheckpointError, match="problem_type = 'ranking' is not supported"):
        activation({"problem_type": "ranking"})


_FURTHER = [
    ("idefics3", "smolvlm, tied"),
    ("blip-2", "flan-t5"),
    ("llava", "siglip and qwen2"),
    ("paligemma", "gemma2"),
    ("vision-encoder-decoder", "trocr"),
]
_KINDS = [(name, EXPORTED) for name in families() if twin_of(name).is_transformers]


def _planned(folder: Path) -> tuple[dict[str, Any], SourceModel]:
    """The manifest of a folder's bundle, without what its files' hashes say, and its warnings."""
    model = SourceModel.open(folder)
    manifest, warnings = build_manifest(Request("x"), 1, model, model.graphs())
    return manifest.model_dump(exclude={"source"}) | {"warnings": warnings}, model


def _as_text(configuration: object) -> str:
    """Functions by their names."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(configuration))


@pytest.mark.parametrize(("name", "config"), _KINDS + _FURTHER)
def test_saved_folder_is_read_as_its_older_form(name: str, config: str, tmp_path: Path) -> None:
    newer, older = tmp_path / "newer", tmp_path / "older"
    newer.mkdir()
    save(name, config, newer)
    shutil.copytree(newer, older)
    make_older(older)
    (manifest, model), (wanted, reference) = _planned(newer), _planned(older)
    assert manifest == wanted
    assert _as_text(model.configuration) == _as_text(reference.configuration)
    assert model.preprocessing.files == reference.preprocessing.files
    weights = reference.network.state_dict()
    for path, value in model.network.state_dict().items():
        assert torch.equal(value, weights[path]), path


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.parametrize("name", ["idefics3", "llava", "bert", "bart", "altclip"])
def test_saved_folder_is_exported(name: str, tmp_path: Path) -> None:
    (tmp_path / "newer").mkdir()
    save(name, EXPORTED, tmp_path / "newer")
    export(str(tmp_path / "newer"), repository=tmp_path / "repository")
    manifest = newest_bundle(tmp_path / "repository", "newer").manifest
    assert set(manifest.tasks) == set(_planned(tmp_path / "newer")[0]["tasks"])
