"""Which model serves a request that names none."""

from __future__ import annotations

from typing import Any

import pytest

from inference.bundle.inputs import PromptImages
from inference.errors import InvalidRequest
from inference.tasks import TASKS
from serving.gateway.requests.catalog import Catalog
from tests.inference.tiny_models import IMAGE, manifest, served

CHAT = TASKS["chat"]
TEXTS = {"messages": [{"role": "user", "content": "a"}]}
PICTURES = {**TEXTS, "images": ["a picture"]}


def catalog(*, default: str = "", readers: int = 1) -> Catalog:
    """One model of texts, and `readers` that read images too."""
    found = Catalog()
    for name in ("texts", *(f"pictures-{number}" for number in range(readers))):
        section: dict[str, object] = {"template": "{{ messages }}", "special_tokens": {}}
        images: dict[str, Any] = {}
        if name != "texts":
            section["images"] = {"place": "<image>"}
            images = {"images": PromptImages(positions=3, token_id=3, tokens=3), "image": IMAGE}
        made = manifest("chat", section, name=name, default=name == default, **images)
        found.put(served(made))
    return found


def chosen(models: Catalog, fields: dict[str, Any]) -> str:
    return models.resolve(CHAT, CHAT.declaration.request(**fields)).name


def test_images_go_to_the_model_that_reads_them_and_texts_to_the_other() -> None:
    assert chosen(catalog(), TEXTS) == "texts"
    assert chosen(catalog(), PICTURES) == "pictures-0"
    assert chosen(catalog(default="texts"), PICTURES) == "pictures-0"


def test_the_default_takes_texts_too_though_it_reads_images() -> None:
    assert chosen(catalog(default="pictures-0"), TEXTS) == "pictures-0"
    assert chosen(catalog(default="pictures-1", readers=2), PICTURES) == "pictures-1"


def test_several_that_read_images_are_ambiguous_without_a_default() -> None:
    models = catalog(readers=2)
    assert chosen(models, TEXTS) == "texts"
    with pytest.raises(InvalidRequest, match="one of pictures-0, pictures-1"):
        chosen(models, PICTURES)
