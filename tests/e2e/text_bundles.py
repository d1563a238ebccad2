"""Tiny checkpoints of `transformers`, exported: random weights, several heads, trained tokenizer.

In this process: the command line would load torch anew for each of them.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import typer
from transformers import (
    BertConfig,
    BertTokenizerFast,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    ViTConfig,
    ViTImageProcessor,
)
from transformers import models as families
from transformers.pipelines import Pipeline, pipeline
from typer.testing import CliRunner

from export.pipeline.cli import export
from tests.export.checkpoint.text_folders import write
from tests.export.tokenizer.tiny_tokenizers import CHAT_TEMPLATE, chat_tokenizer
from tests.export.twins import randomise
from tests.inference.processing.tokenizer_files import trained


def copy_models(repository: Path, folder: Path, models: Iterable[str]) -> Path:
    """`folder/model_repository`, with these models of another repository."""
    for model in models:
        shutil.copytree(repository / model, folder / "model_repository" / model)
    return folder / "model_repository"


POSITIONS = 48
LABELS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")


@dataclass(frozen=True)
class Head:
    """One checkpoint: its class in `transformers`, and fields of its configuration."""

    kind: str
    fields: dict[str, Any]


HEADS = {
    "tiny-filler": Head("BertForPreTraining", {}),
    "tiny-classes": Head("BertForSequenceClassification", {"id2label": dict(enumerate("wxyz"))}),
    "tiny-labeller": Head("BertForTokenClassification", {"id2label": dict(enumerate(LABELS))}),
}
IMAGES = "tiny-images"
CHAT = "tiny-chat"
"""A Llama with a chat template."""
TRANSLATOR = "tiny-translator"
"""An NLLB."""


@dataclass(frozen=True)
class TextBundles:
    """The checkpoints' folder, and the repository with their bundles."""

    checkpoints: Path
    repository: Path

    @classmethod
    def below(cls, folder: Path) -> TextBundles:
        """Where `export_text_bundles` puts them."""
        return cls(folder / "checkpoints", folder / "model_repository")

    def pipeline(self, task: str, name: str) -> Pipeline:
        """The pipeline of `transformers` over the same checkpoint."""
        folder = str(self.checkpoints / name)
        return pipeline(task, model=folder, device="cpu", dtype=torch.float32)

    def model(self, kind: str, name: str) -> Any:
        """The model of `transformers`."""
        return getattr(families.bert, kind).from_pretrained(self.checkpoints / name).eval()

    def tokenizer(self, name: str) -> BertTokenizerFast:
        """The tokenizer of `transformers`."""
        return BertTokenizerFast.from_pretrained(self.checkpoints / name)


def export_text_bundles(folder: Path) -> None:
    """Exports all of `HEADS`, a classifier of images, a Llama and an NLLB below `folder`."""
    made = TextBundles.below(folder)
    for name, head in HEADS.items():
        _text_checkpoint(made.checkpoints / name, head)
        _export(made, name)
    _image_checkpoint(made.checkpoints / IMAGES)
    _export_by_command(made, IMAGES, "--attention")
    _chat_checkpoint(made.checkpoints / CHAT)
    _export(made, CHAT)
    write("nllb", made.checkpoints / TRANSLATOR)
    _export(made, TRANSLATOR)


def _export(made: TextBundles, name: str) -> None:
    export(str(made.checkpoints / name), repository=made.repository)


def _export_by_command(made: TextBundles, name: str, *flags: str) -> None:
    app = typer.Typer()
    app.command()(export)
    arguments = [str(made.checkpoints / name), "--repository", str(made.repository), *flags]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output


def _text_checkpoint(folder: Path, head: Head) -> None:
    folder.mkdir(parents=True)
    trained("word pieces", folder)
    tokenizer = BertTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"), model_max_length=POSITIONS
    )
    tokenizer.save_pretrained(folder)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
        max_position_embeddings=POSITIONS,
        **head.fields,
    )
    model = getattr(families.bert, head.kind)(config).eval()
    randomise(model)
    model.save_pretrained(folder)


def _image_checkpoint(folder: Path) -> None:
    config = ViTConfig(
        image_size=16,
        patch_size=4,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
        id2label={0: "cat", 1: "dog", 2: "horse", 3: "boat", 4: "tree", 5: "sun", 6: "moon"},
    )
    model = families.vit.ViTForImageClassification(config).eval()
    randomise(model)
    model.save_pretrained(folder)
    ViTImageProcessor(size={"height": 16, "width": 16}).save_pretrained(folder)


def _chat_checkpoint(folder: Path) -> None:
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=chat_tokenizer(),
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        chat_template=CHAT_TEMPLATE,
    )
    tokenizer.save_pretrained(folder)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=48,
        max_position_embeddings=POSITIONS,
    )
    model = LlamaForCausalLM(config).eval()
    randomise(model, seed=1)  # whose answers are long and varied
    model.save_pretrained(folder)
