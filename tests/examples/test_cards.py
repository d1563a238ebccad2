"""The committed model cards have the words of the scripts that write them."""

from string import Template

import pytest

from examples import checkpoint
from examples.bert import card as bert_card
from examples.chat import card as chat_card
from examples.en_fr import card as gazette_translator
from examples.es_en import card as translator
from examples.gpt import card as gpt_card
from examples.history.flamingo import card as flamingo_card
from examples.history.perceiver import card as perceiver_card
from examples.history.perceiver_text import card as perceiver_text_card
from examples.history.recurrent import card as recurrent_card
from examples.training import card as model_card
from examples.training import checkpoint_folder
from examples.vit import card as vit_card
from examples.vqa import card as vqa_card


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
    "example-vqa": _of_texts(vqa_card._MEASURED),
    "history-flamingo": flamingo_card._CARD,
    "history-perceiver": perceiver_card._CARD,
    "history-perceiver-text": perceiver_text_card._CARD,
    **dict.fromkeys(recurrent_card.CARDS, _of_texts(recurrent_card._MEASURED)),
}


@pytest.mark.parametrize(("name", "template"), CARDS.items(), ids=list(CARDS))
def test_card_has_the_words_of_its_template(name: str, template: Template) -> None:
    card = (checkpoint(name) / "README.md").read_text(encoding="utf-8").splitlines()
    fixed = [line for line in template.template.splitlines() if "$" not in line]
    assert len(fixed) > 5
    assert [line for line in fixed if line not in card] == []
