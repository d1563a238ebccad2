"""The committed model cards have the words of the scripts that write them."""

from string import Template

import pytest

from export.examples.bundles import CHECKPOINTS
from export.examples.cards import bert as bert_card
from export.examples.cards import chat as chat_card
from export.examples.cards import flamingo as flamingo_card
from export.examples.cards import gpt as gpt_card
from export.examples.cards import model as model_card
from export.examples.cards import perceiver as perceiver_card
from export.examples.cards import perceiver_text as perceiver_text_card
from export.examples.cards import recurrent as recurrent_card
from export.examples.cards import vit as vit_card
from export.examples.training import checkpoint_folder, gazette_translator, translator


def _of_texts(measured: str) -> Template:
    """The card that folders of texts share, with how theirs were measured."""
    return Template(model_card._CARD.template.replace("$measured", measured))


CARDS = {
    **dict.fromkeys(bert_card.CARDS, _of_texts(bert_card._MEASURED)),
    "example-chat": _of_texts(chat_card._MEASURED),
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
