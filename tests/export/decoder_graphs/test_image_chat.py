"""The section of conversations with images: by what the checkpoint's template writes of a part."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from export.checkpoint.checkpoint import Checkpoint
from export.decoder_graphs.chat_section import image_caption_section, image_chat_section
from inference.bundle.inputs import PromptImages

NETWORK: Any = SimpleNamespace(images=PromptImages(positions=2, token_id=5, tokens=2))
PARTS = (
    "{% for m in messages %}{% for p in m.content %}"
    "{% if p.type == 'image' %}<image>\n{% else %}{{ p.text }}{% endif %}{% endfor %}{% endfor %}"
)
PLAIN = "{% for m in messages %}{{ m.content }}{% endfor %}"


def _folder(folder: Path, file: str, template: str) -> Checkpoint:
    added = [{"content": "<image>", "id": 5}]
    (folder / "tokenizer.json").write_text(json.dumps({"added_tokens": added}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>"}))
    text = template if file.endswith(".jinja") else json.dumps({"chat_template": template})
    (folder / file).write_text(text)
    return Checkpoint(folder, "x", {})


@pytest.mark.parametrize("file", ["chat_template.jinja", "chat_template.json"])
def test_a_template_of_parts_takes_images(file: str, tmp_path: Path) -> None:
    section = image_chat_section(NETWORK, _folder(tmp_path, file, PARTS))
    assert section == {
        "template": PARTS,
        "special_tokens": {"bos_token": "<s>"},
        "images": {"place": "<image>"},
    }


def test_a_template_of_texts_takes_none(tmp_path: Path) -> None:
    section = image_chat_section(NETWORK, _folder(tmp_path, "chat_template.jinja", PLAIN))
    assert "images" not in section


def test_a_checkpoint_without_a_template_has_no_section(tmp_path: Path) -> None:
    assert image_chat_section(NETWORK, _folder(tmp_path, "other.jinja", PARTS)) is None


def test_an_instruction_for_a_caption_is_written_into_the_template(tmp_path: Path) -> None:
    template = f"{{{{ bos_token }}}}{PARTS} ASSISTANT:"
    section = image_caption_section(NETWORK, _folder(tmp_path, "chat_template.jinja", template))
    assert section["layout"] == ("<s><image>\n", " ASSISTANT:")
    assert section["is_complete"]


def test_a_caption_without_a_template_of_parts_has_its_first_words(tmp_path: Path) -> None:
    checkpoint = _folder(tmp_path, "chat_template.jinja", PLAIN)
    assert image_caption_section(NETWORK, checkpoint) == {"images": {"place": "<image>"}}
