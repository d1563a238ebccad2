"""The initial heads of the example language models attend where their initialisation intends."""

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Qwen2Tokenizer

from examples.chat.train import OUTPUT, build_model
from examples.gpt.induction_heads import DISTANCES, initialise_induction_heads

ARROW, NEWLINE = 1, 2


@pytest.fixture(scope="module")
def model() -> GPT2LMHeadModel:
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=300,
        n_positions=256,
        n_embd=128,
        n_layer=2,
        n_head=4,
        initializer_range=0.06,
        attn_implementation="eager",  # the implementation that returns its weights
        bos_token_id=0,
        eos_token_id=0,
    )
    model = GPT2LMHeadModel(config).eval()
    initialise_induction_heads(model)
    return model


def attentions(model, ids):
    with torch.no_grad():
        return model.transformer(ids, output_attentions=True).attentions


@pytest.mark.parametrize("start", [0, 150])
def test_first_heads_attend_at_their_distance_at_any_position(model, start):
    ids = torch.randint(3, 300, (2, 60))
    positions = start + torch.arange(60)[None]
    with torch.no_grad():
        first = model.transformer(ids, position_ids=positions, output_attentions=True).attentions[0]
    for head, distance in enumerate(DISTANCES):
        seen = first[:, head].diagonal(-distance, 1, 2)  # (B, T - distance)
        assert seen.min() > 0.9


@pytest.mark.parametrize(("head", "length"), [(0, 1), (1, 2)])
def test_next_layer_attends_to_the_answer_of_the_query_word(model, head, length):
    generator = torch.Generator().manual_seed(1)
    same, others = [], []
    for _ in range(40):
        words = torch.randint(3, 300, (4, length), generator=generator).tolist()
        answers = torch.randint(3, 300, (4,), generator=generator).tolist()
        ids, places = [], []
        for word, answer in zip(words, answers, strict=True):
            places.append(len(ids) + length + 1)
            ids += [*word, ARROW, answer, NEWLINE]
        ids += [*words[1], ARROW]
        looks = attentions(model, torch.tensor([ids]))[1][0, head, -1]
        same.append(looks[places.pop(1)].item())
        others += looks[places].tolist()
    assert sum(same) / len(same) > 4 * sum(others) / len(others)


def test_rotary_heads_attend_to_the_word_before_and_to_what_followed_it():
    torch.manual_seed(0)
    model = build_model(Qwen2Tokenizer.from_pretrained(OUTPUT)).eval()
    words = torch.randperm(900)[:60] + 100
    with torch.no_grad():
        ids = torch.cat([words, words])[None]
        first, second = model.model(ids, output_attentions=True).attentions[:2]
    assert first[0, 0].diagonal(-1).mean() > 0.95
    assert second[0, 0].diagonal(-59)[1:].mean() > 0.5
