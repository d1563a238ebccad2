"""The committed model cards have the words of the scripts that write them."""

from pathlib import Path
from string import Template

import pytest

from export.examples import (
    bert_card,
    checkpoint_folder,
    flamingo_card,
    gazette_translator,
    gpt_card,
    model_card,
    perceiver_card,
    perceiver_text_card,
    recurrent_card,
    translator,
    vit_card,
)


def _of_texts(measured: str) -> Template:
    """The card that folders of texts share, with how theirs were measured."""
    return Template(model_card._CARD.template.replace("$measured", measured))


CHECKPOINTS = Path(translator.__file__).parent / "checkpoints"
CARDS = {
    **dict.fromkeys(bert_card.CARDS, _of_texts(bert_card._MEASURED)),
    "example-clip": checkpoint_folder._CARD,
    "example-en-fr": gazette_translator._CARD,
    "example-es-en": translator._CARD,
    "example-gpt": gpt_card._CARD,
    "example-vit": vit_card._CARD,
    "history-flamingo": flamingo_card._CARD,
    "history-perceiver": perceiver_card._CARD,
    "history-perceiver-text": perceiver_text_card._CARD,
    **dict.fromkeys(recurrent_card.CARDS, _of_texts(recurrent_card._MEASURED)),
}


@pytest.mark.parametrize(("name", "template"), CARDS.items(), ids=list(CARDS))
def test_card_has_the_words_of_its_template(name: str, template: Template) -> None:
    card = (CHECKPOINTS / name / "README.md").read_text(encoding="utf-8").splitlines()
    fixed = [line for line in template.template.splitlines() if "$" not in line]
    assert len(fixed) > 5
    assert [line for line in fixed if line not in card] == []
