"""The committed translator of the gazette reaches the scores of its card, on a sample."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from examples.en_fr.card import CHECKPOINT
from examples.en_fr.gazette import FAMOUS, sentences
from examples.en_fr.scores import alignment_share, exact_share
from examples.en_fr.train import batches, word_tokenizer
from export.checkpoint.checkpoint import CONFIG
from export.models.recurrent.bahdanau import Bahdanau, read_config
from export.training.bahdanau import (
    NETWORK,
    PADDING,
    START,
    initialise,
    reader,
    save,
    teacher_forced,
    translator,
    write_settings,
)
from export.training.functions import Read

SOURCE = "The agreement on the European Economic Area was signed in August 1992 . </s>".split()
TARGET = "L' accord sur la zone économique européenne a été signé en août 1992 .".split()


@pytest.fixture(scope="module")
def read() -> Read:
    return reader(CHECKPOINT, beams=1)


def test_the_papers_sentence_is_translated_exactly(read: Read) -> None:
    assert read([FAMOUS[0]])[0].text == FAMOUS[1]
    assert translator(CHECKPOINT, beams=4)([FAMOUS[0]]) == [FAMOUS[1]]


def test_attention_runs_backwards_over_the_european_economic_area(read: Read) -> None:
    attention = read([FAMOUS[0]])[0].attention
    looked_at = {word: SOURCE[row.argmax()] for word, row in zip(TARGET, attention, strict=False)}
    assert looked_at["zone"] == "Area"
    assert looked_at["économique"] == "Economic"
    assert looked_at["européenne"] == "European"


def test_new_sentences_are_translated_and_aligned(read: Read) -> None:
    def translate(texts: list[str]) -> list[str]:
        return [reading.text for reading in read(texts)]

    assert exact_share(translate, "compositional", 60, seed=7) > 0.9
    assert alignment_share(read, "compositional", 60, seed=7) > 0.9
    assert alignment_share(read, "compositional", 60, seed=7, only_reversed=True) > 0.9


def test_teacher_forcing_equals_decoding(tmp_path: Path) -> None:
    """The training loss uses the served function: same logits per step and row."""
    torch.manual_seed(0)
    tokenizer = word_tokenizer(list(sentences("train", 300)))
    write_settings(tmp_path, tokenizer, NETWORK)
    model = Bahdanau(read_config(json.loads((tmp_path / CONFIG).read_text()))).eval()
    initialise(model)
    batch = next(batches(tokenizer, seed=0))
    with torch.no_grad():
        forced = teacher_forced(model, batch, dropout=0.0)
        row, length = 5, int(batch.lengths[5])
        source, lengths = batch.source[row : row + 1, :length], batch.lengths[row : row + 1]
        assert length == source.shape[1]
        assert PADDING not in source
        annotations = model.encoder(source, lengths)
        keys = model.decoder.attention.project_keys(annotations)
        (state,) = model.decoder.initial_states(annotations)
        before = [START, *batch.target[row, :-1].tolist()]
        for place, word in enumerate(before):
            if batch.target[row, place] < 0:
                break
            words = model.decoder.words(torch.tensor([word]))
            state, context, _ = model.decoder.advance(words, state, annotations, keys, lengths)
            logits = model.decoder.logits(words, state, context)
            assert torch.allclose(forced[row, place], logits[0], atol=1e-5)
        assert place > 3


def test_saved_weights_are_half_and_complete(tmp_path: Path) -> None:
    tokenizer = word_tokenizer(list(sentences("train", 100)))
    write_settings(tmp_path, tokenizer, NETWORK)
    model = Bahdanau(read_config(json.loads((tmp_path / CONFIG).read_text())))
    save(model, tmp_path)
    saved = load_file(tmp_path / "model.safetensors")
    assert set(saved) == set(model.state_dict())
    assert {value.dtype for value in saved.values()} == {torch.float16}
