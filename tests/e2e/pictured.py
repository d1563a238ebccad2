"""A small random LLaVA and OWL-ViT with tokenizers of words: checkpoints and bundles."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, processors
from transformers import CLIPImageProcessorPil, OwlViTImageProcessorPil, PreTrainedTokenizerFast

from export.pipeline.cli import export
from tests.export.twins import make_twin

REPOSITORY = "repository"
TEMPLATE = (
    "{% for m in messages %}{{ m.role | upper }} "
    "{% for p in m.content | selectattr('type', 'equalto', 'image') %}<image> {% endfor %}"
    "{% for p in m.content | selectattr('type', 'equalto', 'text') %}{{ p.text }} {% endfor %}"
    "{% endfor %}{% if add_generation_prompt %}ASSISTANT{% endif %}"
)
"""As that of llava-1.5: a message's images come first."""


WORDS = ["<pad>", "<s>", "</s>", *(f"w{number}" for number in range(3, 59))]
WORDS += ["USER", "ASSISTANT", "<image>", "w62", "<end>"]


def _tokenizer(layout: str, **settings: str) -> PreTrainedTokenizerFast:
    """One of words; `layout` has the special tokens that are added to a text."""
    ids = {word: place for place, word in enumerate(WORDS)}
    backend = Tokenizer(models.WordLevel(ids, unk_token="w3"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = ["<pad>", "<s>", "</s>", "<image>", "<end>"]
    backend.add_special_tokens([AddedToken(text) for text in special])
    used = [(word, ids[word]) for word in special if word in layout]
    backend.post_processor = processors.TemplateProcessing(single=layout, special_tokens=used)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", unk_token="w3", **settings
    )


def export_pictured(made: Path) -> None:
    """Write both checkpoints with all files of such folders, and export them to `REPOSITORY`."""
    make_twin("llava", "odd", made / "llava")
    _tokenizer("<s> $A", bos_token="<s>", eos_token="</s>").save_pretrained(made / "llava")
    square = {"height": 16, "width": 16}
    recipe = CLIPImageProcessorPil(size={"shortest_edge": 16}, crop_size=square)
    recipe.save_pretrained(made / "llava")
    (made / "llava" / "chat_template.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    make_twin("owlvit", "odd", made / "owlvit")
    _tokenizer("$A <end>", eos_token="<end>").save_pretrained(made / "owlvit")
    OwlViTImageProcessorPil(size={"height": 44, "width": 44}).save_pretrained(made / "owlvit")
    for name in ("llava", "owlvit"):
        export(str(made / name), repository=made / REPOSITORY)
