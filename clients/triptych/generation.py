"""The verbs of generation: they have more arguments than all the others together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from triptych import messages
from triptych.calls import Call, validated
from triptych.tasks.generate import Example, GenerateRequest, GenerateResponse


def generate(
    prompts: str | Iterable[str],
    *,
    instruction: str | None = None,
    examples: Iterable[tuple[str, str]] | None = None,
    model: str | None = None,
    max_new_tokens: int | None = None,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    typical_p: float | None = None,
    repetition_penalty: float | None = None,
    presence_penalty: float | None = None,
    frequency_penalty: float | None = None,
    logit_bias: Mapping[int, float] | None = None,
    seed: int | None = None,
    num_beams: int | None = None,
    length_penalty: float | None = None,
    early_stopping: bool | None = None,
    no_repeat_ngram_size: int | None = None,
    n: int | None = None,
    best_of: int | None = None,
    stop: str | Iterable[str] | None = None,
    logprobs: int | None = None,
) -> Call[GenerateResponse]:
    """Prompts continued, in the order given.

    With `instruction` or `examples` the prompts stand in the few-shot layout, and a line break ends
    the answer. Tokens are sampled when a field of sampling is given.

    Args:
        prompts: One or many.
        instruction: What to do, before the examples.
        examples: Solved ones, as pairs of input and output.
        model: May be left out when only one fits.
        max_new_tokens: Where to stop at the latest.
        temperature: Sampling; above 1 more daring, 0 takes the best token.
        top_k: Sampling among so many best tokens; 0 among all.
        top_p: Sampling among the best tokens that have this probability together.
        min_p: Sampling among tokens that have this share of the best one's probability.
        typical_p: Sampling among the most typical tokens (arXiv 2202.00666).
        repetition_penalty: Divides the scores of tokens that have been seen; 1 is none.
        presence_penalty: Taken once from the score of each token that was generated.
        frequency_penalty: Taken as often as the token was generated.
        logit_bias: Added to the scores of tokens, by their ids.
        seed: Sampling that can be repeated.
        num_beams: Width of a search instead of sampling.
        length_penalty: Exponent of the length by which scores are divided.
        early_stopping: A search ends with its first `num_beams` answers.
        no_repeat_ngram_size: No so many tokens twice in a row.
        n: Answers to each prompt, best first.
        best_of: Samples of which the best `n` are told.
        stop: The answer ends before the first of these texts.
        logprobs: Log-probabilities of the tokens, and of so many best ones beside each.

    Raises:
        TriptychError: See `triptych.errors`.
    """
    request = validated(
        GenerateRequest,
        prompts=_listed(prompts),
        instruction=instruction,
        examples=_examples(examples),
        model=model,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        typical_p=typical_p,
        repetition_penalty=repetition_penalty,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        logit_bias=dict(logit_bias) if logit_bias else None,
        seed=seed,
        num_beams=num_beams,
        length_penalty=length_penalty,
        early_stopping=early_stopping,
        no_repeat_ngram_size=no_repeat_ngram_size,
        n=n,
        best_of=best_of,
        stop=_listed(stop),
        logprobs=logprobs,
    )
    return Call("Generate", "/v1/generate", request, GenerateResponse)


def generate_stream(
    prompts: str | Iterable[str],
    *,
    instruction: str | None = None,
    examples: Iterable[tuple[str, str]] | None = None,
    model: str | None = None,
    max_new_tokens: int | None = None,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    typical_p: float | None = None,
    repetition_penalty: float | None = None,
    presence_penalty: float | None = None,
    frequency_penalty: float | None = None,
    logit_bias: Mapping[int, float] | None = None,
    seed: int | None = None,
    no_repeat_ngram_size: int | None = None,
    stop: str | Iterable[str] | None = None,
    logprobs: int | None = None,
) -> Call[messages.Chunk]:
    """Prompts continued, piece by piece as they are generated.

    Pieces of several prompts come side by side, each with its prompt's `index`. Arguments mean what
    they mean to `generate`; beams and several answers cannot stream.

    Raises:
        TriptychError: See `triptych.errors`; after the first piece nothing is tried again.
    """
    request = validated(
        GenerateRequest,
        prompts=_listed(prompts),
        instruction=instruction,
        examples=_examples(examples),
        model=model,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        typical_p=typical_p,
        repetition_penalty=repetition_penalty,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        logit_bias=dict(logit_bias) if logit_bias else None,
        seed=seed,
        num_beams=1,
        no_repeat_ngram_size=no_repeat_ngram_size,
        stop=_listed(stop),
        logprobs=logprobs,
        stream=True,
    )
    return Call("GenerateStream", "/v1/generate", request, messages.Chunk)


def _listed(texts: str | Iterable[str] | None) -> list[str] | str | None:
    return texts if texts is None or isinstance(texts, str) else list(texts)


def _examples(pairs: Iterable[tuple[str, str]] | None) -> list[Example] | None:
    if pairs is None:
        return None
    return [validated(Example, input=given, output=answer) for given, answer in pairs]
