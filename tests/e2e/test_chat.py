"""Conversations over HTTP, gRPC and OpenAI's client are answered as `transformers` does.

The checkpoint is a tiny random Llama with a chat template.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import openai
import pytest
import torch
from openai.types.chat import ChatCompletionMessageParam
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from tests.e2e.conftest import Stack
from tests.e2e.text_bundles import CHAT, TextBundles
from triptych import Client, GrpcClient

pytestmark = pytest.mark.integration

TOLERANCE = 1e-4
NEW_TOKENS = 10
CHATS: list[list[ChatCompletionMessageParam]] = [
    [{"role": "user", "content": "abba"}],
    [
        {"role": "user", "content": "ab ba"},
        {"role": "assistant", "content": "caba"},
        {"role": "user", "content": "abc"},
    ],
]
PROMPTS = ["abba cab", "cab"]


@dataclass(frozen=True)
class Original:
    """Tokenizer and model of `transformers`."""

    tokenizer: PreTrainedTokenizerFast
    model: LlamaForCausalLM

    def prompt(self, chat: list[ChatCompletionMessageParam]) -> torch.Tensor:
        """(1, T) tokens of a conversation, with the beginning of the answer."""
        laid_out = self.tokenizer.apply_chat_template(
            chat, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        ids: torch.Tensor = laid_out["input_ids"]
        return ids

    def answer(self, chat: list[ChatCompletionMessageParam], num_beams: int = 1) -> torch.Tensor:
        """(T) tokens of the best answer."""
        return self.continued(self.prompt(chat), num_beams)

    def continued(self, ids: torch.Tensor, num_beams: int = 1) -> torch.Tensor:
        """(1, T) → (T') tokens of the best continuation."""
        with torch.no_grad():
            found = self.model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                num_beams=num_beams,
                max_new_tokens=NEW_TOKENS,
            )
        tokens: torch.Tensor = found[0, ids.shape[1] :]
        return tokens

    def text(self, tokens: torch.Tensor) -> str:
        """The tokens decoded, without special ones."""
        return str(self.tokenizer.decode(tokens, skip_special_tokens=True))

    def scores(self, ids: torch.Tensor) -> list[float]:
        """Log-probabilities of all tokens but the first."""
        with torch.no_grad():
            scores = self.model(ids).logits[0, :-1].log_softmax(-1)
        found: list[float] = scores.gather(1, ids[0, 1:, None])[:, 0].tolist()
        return found


@pytest.fixture(scope="module")
def original(bundles: TextBundles) -> Original:
    folder = bundles.checkpoints / CHAT
    return Original(
        PreTrainedTokenizerFast.from_pretrained(folder),
        LlamaForCausalLM.from_pretrained(folder).eval(),
    )


@pytest.fixture
def openai_client(tiny_stack: Stack) -> Iterator[openai.OpenAI]:
    url = f"{tiny_stack.url}/v1"
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=60) as made:
        yield made


def test_original_answers_are_varied(original: Original) -> None:
    tokens = [original.answer(chat).tolist() for chat in CHATS]
    assert tokens[0] != tokens[1]
    assert min(len(set(answer)) for answer in tokens) > 4


@pytest.mark.parametrize("num_beams", [1, 3])
@pytest.mark.parametrize("chat", CHATS, ids=["one message", "three messages"])
def test_answers_are_those_of_transformers(
    tiny_client: Client | GrpcClient,
    original: Original,
    chat: list[ChatCompletionMessageParam],
    num_beams: int,
) -> None:
    limits: dict[str, Any] = {"num_beams": num_beams, "max_new_tokens": NEW_TOKENS}
    answer = tiny_client.chat(chat, model=CHAT, **limits)
    wanted = original.answer(chat, num_beams)
    assert answer.data[0].text == original.text(wanted)
    assert answer.usage.prompt_tokens == original.prompt(chat).shape[1]
    assert answer.usage.completion_tokens == len(wanted)


@pytest.mark.parametrize("chat", CHATS, ids=["one message", "three messages"])
def test_streams_join_to_the_answer(
    tiny_client: Client | GrpcClient, original: Original, chat: list[ChatCompletionMessageParam]
) -> None:
    chunks = list(tiny_client.chat_stream(chat, model=CHAT, max_new_tokens=NEW_TOKENS))
    assert "".join(chunk.text for chunk in chunks) == original.text(original.answer(chat))
    (usage,) = [chunk.usage for chunk in chunks if chunk.usage is not None]
    assert usage.completion_tokens == len(original.answer(chat))


def test_prompts_are_echoed_with_their_log_probabilities(
    tiny_client: Client | GrpcClient, original: Original
) -> None:
    asked: dict[str, Any] = {"model": CHAT, "max_new_tokens": 3, "logprobs": 1}
    plain = tiny_client.generate(PROMPTS, **asked).data
    echoed = tiny_client.generate(PROMPTS, echo=True, **asked).data
    for prompt, before, item in zip(PROMPTS, plain, echoed, strict=True):
        ids = original.tokenizer(prompt, return_tensors="pt")["input_ids"]
        assert item.text == prompt + before.text
        first, *others = item.prompt_logprobs
        assert first.logprob is None
        assert [one.logprob for one in others] == pytest.approx(original.scores(ids), abs=TOLERANCE)
        shifted = [
            one.model_copy(update={"text_offset": one.text_offset - len(prompt)})
            for one in item.logprobs
        ]
        assert shifted == before.logprobs


@pytest.mark.parametrize("chat", CHATS, ids=["one message", "three messages"])
def test_completions_of_the_client_of_openai(
    openai_client: openai.OpenAI, original: Original, chat: list[ChatCompletionMessageParam]
) -> None:
    wanted = original.answer(chat)
    done = openai_client.chat.completions.create(
        model=CHAT, messages=chat, max_tokens=NEW_TOKENS, logprobs=True, top_logprobs=2
    )
    (choice,) = done.choices
    assert (choice.message.role, choice.message.content) == ("assistant", original.text(wanted))
    assert choice.finish_reason == ("stop" if wanted[-1] == 2 else "length")
    assert done.usage.prompt_tokens == original.prompt(chat).shape[1]
    assert done.usage.completion_tokens == len(wanted)

    whole = torch.cat([original.prompt(chat), wanted[None]], dim=1)
    scores = [entry.logprob for entry in choice.logprobs.content or []]
    assert scores == pytest.approx(original.scores(whole)[-len(wanted) :], abs=TOLERANCE)


@pytest.mark.parametrize("stream", [False, True])
def test_prompts_are_completed_for_the_client_of_openai(
    openai_client: openai.OpenAI, original: Original, stream: bool
) -> None:
    ids = [original.tokenizer(prompt, return_tensors="pt")["input_ids"] for prompt in PROMPTS]
    wanted = [original.continued(one) for one in ids]
    asked: dict[str, Any] = {"model": CHAT, "prompt": PROMPTS, "max_tokens": NEW_TOKENS}
    if stream:
        texts = [""] * len(PROMPTS)
        with openai_client.completions.create(**asked, stream=True) as events:
            for event in events:
                texts[event.choices[0].index] += event.choices[0].text
        assert texts == [original.text(tokens) for tokens in wanted]
        return
    done = openai_client.completions.create(**asked, logprobs=1, echo=True)
    assert [choice.index for choice in done.choices] == [0, 1]
    for choice, prompt, before, tokens in zip(done.choices, PROMPTS, ids, wanted, strict=True):
        assert choice.text == prompt + original.text(tokens)
        first, *scores = choice.logprobs.token_logprobs or []
        assert first is None
        whole = torch.cat([before, tokens[None]], dim=1)
        assert scores == pytest.approx(original.scores(whole), abs=TOLERANCE)


def test_same_seed_draws_the_same_answer(openai_client: openai.OpenAI, tiny_stack: Stack) -> None:
    drawn = openai_client.chat.completions.create(
        model=CHAT, messages=CHATS[0], max_tokens=NEW_TOKENS, temperature=0.9, seed=7, n=3
    )
    texts = [choice.message.content for choice in drawn.choices]
    assert len(set(texts)) > 1
    with Client(tiny_stack.url, timeout=60) as client:
        item = client.chat(
            CHATS[0], model=CHAT, max_new_tokens=NEW_TOKENS, temperature=0.9, seed=7, n=3
        ).data[0]
    assert [one.text for one in item.alternatives or []] == texts


def test_tasks_of_a_model_with_a_template(tiny_client: Client | GrpcClient) -> None:
    rows = {model.id: model for model in tiny_client.models().data}
    assert rows[CHAT].tasks == ["generate", "chat", "score"]
