"""A checkpoint's generation defaults, resolved once, so that serving reads the manifest only.

Names and neutral values are those of `transformers.GenerationConfig`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from export.checkpoint.checkpoint import Checkpoint
from inference.bundle.manifest import Limits
from inference.errors import CheckpointError
from inference.generation import Generation

FILE = "generation_config.json"

# Unsupported parameters, and the values that switch them off.
_NEUTRAL: dict[str, tuple[object, ...]] = {
    "encoder_repetition_penalty": (1, 1.0),
    "encoder_no_repeat_ngram_size": (0,),
    "diversity_penalty": (0, 0.0),
    "num_beam_groups": (1,),
    "penalty_alpha": (0, 0.0),
    "begin_suppress_tokens": ([],),
    "forced_decoder_ids": ([],),
    "exponential_decay_length_penalty": (),
    "guidance_scale": (1, 1.0),
    "force_words_ids": ([],),
    "constraints": ([],),
    "top_h": (),
    "epsilon_cutoff": (0, 0.0),
    "eta_cutoff": (0, 0.0),
}
_SAME_NAMES = (
    "num_beams",
    "num_return_sequences",
    "length_penalty",
    "early_stopping",
    "no_repeat_ngram_size",
    "renormalize_logits",
    "repetition_penalty",
    "do_sample",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "typical_p",
)
DEFAULT_NEW_TOKENS = 256
"""Of language models without one: the engine reserves memory for the longest possible answer."""
DEFAULT_TARGET_TOKENS = 512
"""Of models with a source without one; relative positions alone would allow any length."""
DEFAULT_TOP_K = 50
"""What `transformers` samples from where a file has no `top_k`
(`GenerationConfig._get_default_generation_params`)."""


class _Given(BaseModel):
    """Fields of the file that are converted before `Generation` checks them."""

    max_new_tokens: int | None = None
    max_length: int | None = None
    min_new_tokens: int | None = None
    min_length: int | None = None
    suppress_tokens: list[int] | None = None
    bad_words_ids: list[list[int]] | None = None
    sequence_bias: list[tuple[list[int], float]] | None = None
    """JSON has no tuples for keys, so `transformers` writes lists."""


def generation_defaults(
    checkpoint: Checkpoint,
    limits: Limits,
    *,
    has_source: bool = True,
    values: Mapping[str, Any] | None = None,
) -> tuple[Generation, list[str]]:
    """The checkpoint's generation parameters, and one line for each unsupported one.

    Args:
        has_source: Decoder-only models have none: they start from the prompt, not from a token.
        values: The parameters, where they are not in the usual files.

    Raises:
        CheckpointError: the start or padding token of a decoder with a source is nowhere given, or
            a value is impossible.
    """
    values = _values(checkpoint) if values is None else values
    try:
        given = _Given.model_validate(values).model_dump(exclude_unset=True)
        values = {**values, **given}
        fields = _fields(checkpoint, values, limits, has_source=has_source)
        return Generation.model_validate(fields), _warnings(values, has_source=has_source)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise CheckpointError(
            f"{checkpoint.folder}: generation default {place} = {first['input']!r}: {first['msg']}"
        ) from error


def _fields(
    checkpoint: Checkpoint, values: Mapping[str, Any], limits: Limits, *, has_source: bool
) -> dict[str, Any]:
    names = ("decoder_start_token_id", "bos_token_id") if has_source else ()
    start = _ids(_first(values, *names))
    ends = _ids(values.get("eos_token_id"))
    pad = values.get("pad_token_id")
    pad = ends[0] if pad is None and ends else pad
    pad = 0 if pad is None and not has_source else pad  # masked, whichever it is
    missing = "pad_token_id" if pad is None else "decoder_start_token_id"
    if pad is None or (has_source and not start):
        raise CheckpointError(
            f"{checkpoint.folder}: neither {FILE} nor config.json gives {missing}"
        )
    bad_words = [tuple(words) for words in values.get("bad_words_ids") or ()]
    fields = {
        "decoder_start_ids": start,
        "eos_token_ids": ends,
        "pad_token_id": pad,
        "max_new_tokens": _max_new_tokens(values, limits, has_source=has_source),
        # A ban on the end token would be no sentence; `transformers` drops it too.
        "bad_words_ids": tuple(words for words in bad_words if words not in {(e,) for e in ends}),
        "suppress_tokens": tuple(values.get("suppress_tokens") or ()),
        "forced_bos_token_id": values.get("forced_bos_token_id"),
        "forced_eos_token_id": next(iter(_ids(values.get("forced_eos_token_id"))), None),
        "min_new_tokens": _min_new_tokens(values, has_source=has_source),
        "logit_bias": {words[0]: bias for words, bias in _biases(values) if len(words) == 1},
    }
    fields |= {name: values[name] for name in _SAME_NAMES if values.get(name) is not None}
    if fields.get("do_sample"):
        fields.setdefault("top_k", DEFAULT_TOP_K)
        fields["do_sample"] = not _samples_beams(values)
    elif values.get("temperature") == 0:
        del fields["temperature"]  # stands for greedy decoding
    return fields


def _values(checkpoint: Checkpoint) -> Mapping[str, Any]:
    """`generation_config.json`; older checkpoints keep the same keys in `config.json`.

    There a decoder's own section fills what the top level leaves out, as in `transformers`.
    """
    if checkpoint.has(FILE):
        return checkpoint.json(FILE)
    decoder = checkpoint.config.get("decoder")
    inner = decoder if isinstance(decoder, Mapping) else {}
    given = {key: value for key, value in checkpoint.config.items() if value is not None}
    return {**inner, **given}


def _max_new_tokens(values: Mapping[str, Any], limits: Limits, *, has_source: bool) -> int:
    """Default limit, within the decoder's positions; one of them is the start token's."""
    room = (limits.max_total_tokens or 1024) - 1
    if values.get("max_new_tokens") is not None:
        return min(int(values["max_new_tokens"]), room)
    if values.get("max_length") is not None:
        return min(int(values["max_length"]) - 1, room)
    return min(DEFAULT_TARGET_TOKENS if has_source else DEFAULT_NEW_TOKENS, room)


def _min_new_tokens(values: Mapping[str, Any], *, has_source: bool) -> int:
    """Minimum of generated tokens; `min_length` counts the start token too, unlike a prompt."""
    if values.get("min_new_tokens") is not None:
        return int(values["min_new_tokens"])
    return max(0, (values.get("min_length") or 0) - 1) if has_source else 0


def _biases(values: Mapping[str, Any]) -> list[tuple[tuple[int, ...], float]]:
    """(tokens, bias) pairs."""
    return [(tuple(words), bias) for words, bias in values.get("sequence_bias") or ()]


def _samples_beams(values: Mapping[str, Any]) -> bool:
    return bool(values.get("do_sample")) and (values.get("num_beams") or 1) > 1


def _warnings(values: Mapping[str, Any], *, has_source: bool) -> list[str]:
    unsupported = [
        f"{name}={values[name]!r}"
        for name, neutral in _NEUTRAL.items()
        if values.get(name) is not None and values[name] not in neutral
    ]
    ends = _ids(values.get("forced_eos_token_id"))
    if _samples_beams(values):
        unsupported.append("do_sample=True together with beams")
    if any(len(words) > 1 for words, _ in _biases(values)):
        unsupported.append("sequence_bias of several tokens")
    if not has_source and values.get("min_new_tokens") is None and (values.get("min_length") or 0):
        unsupported.append(f"min_length={values['min_length']!r}, which counts the prompt,")
    if len(ends) > 1:
        unsupported.append(f"forced_eos_token_id={list(ends)!r} (its first is used)")
    lines = [f"sets {one}, which is not supported and ignored" for one in unsupported]
    if has_source and "eos_token_id" not in values:
        lines.append("gives no eos_token_id: no answer ends before its longest length")
    return [f"the checkpoint {line}" for line in lines]


def _ids(value: object) -> tuple[int, ...]:
    if value is None:
        return ()
    return tuple(value) if isinstance(value, list | tuple) else (value,)  # type: ignore[return-value]


def _first(values: Mapping[str, Any], *names: str) -> Any:
    return next((values[name] for name in names if values.get(name) is not None), None)


def generation_reader(ends: Mapping[str, int]) -> Callable[[Checkpoint], Mapping[str, Any]]:
    """Reads `FILE` or, where there is none, what the configuration says of its language model.

    Args:
        ends: First, last and padding token, where neither says anything.
    """

    def read(checkpoint: Checkpoint) -> Mapping[str, Any]:
        text = checkpoint.config.get("text_config") or {}
        given = {name: value for name, value in checkpoint.config.items() if value is not None}
        return checkpoint.json(FILE) or {**ends, **text, **given}

    return read
