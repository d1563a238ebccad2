"""A checkpoint's generation defaults, resolved once, so that serving reads the manifest only.

Names and neutral values are those of `transformers.GenerationConfig`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from export.checkpoint import Checkpoint
from serving.bundle import Limits
from serving.errors import CheckpointError
from serving.generation import Generation

FILE = "generation_config.json"

# What we do not have, and the values that mean "not asked for".
_NEUTRAL: dict[str, tuple[object, ...]] = {
    "do_sample": (False,),
    "repetition_penalty": (1, 1.0),
    "encoder_repetition_penalty": (1, 1.0),
    "encoder_no_repeat_ngram_size": (0,),
    "diversity_penalty": (0, 0.0),
    "num_beam_groups": (1,),
    "penalty_alpha": (0, 0.0),
    "min_length": (0,),
    "min_new_tokens": (0,),
    "begin_suppress_tokens": ([],),
    "forced_decoder_ids": ([],),
    "exponential_decay_length_penalty": (),
    "guidance_scale": (1, 1.0),
    "sequence_bias": ({},),
    "force_words_ids": ([],),
    "constraints": ([],),
}


def generation_defaults(
    checkpoint: Checkpoint, limits: Limits, *, has_source: bool = True
) -> tuple[Generation, list[str]]:
    """The checkpoint's own rules, and one line for each that cannot be honoured.

    Args:
        has_source: Decoder-only models have none: they start from the prompt, not from a token.

    Raises:
        CheckpointError: the decoder's start or padding token is nowhere given, or a value is
            impossible.
    """
    values = _values(checkpoint)
    names = ("decoder_start_token_id", "bos_token_id") if has_source else ()
    start = _ids(_first(values, *names))
    ends = _ids(values.get("eos_token_id"))
    pad = values.get("pad_token_id")
    pad = ends[0] if pad is None and ends else pad
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
        "max_new_tokens": _max_new_tokens(values, limits),
        # A ban on the end token would be no sentence; `transformers` drops it too.
        "bad_words_ids": tuple(words for words in bad_words if words not in {(e,) for e in ends}),
        "suppress_tokens": tuple(values.get("suppress_tokens") or ()),
        "forced_bos_token_id": values.get("forced_bos_token_id"),
        "forced_eos_token_id": _single(values.get("forced_eos_token_id")),
    }
    for name in (
        "num_beams",
        "num_return_sequences",
        "length_penalty",
        "early_stopping",
        "no_repeat_ngram_size",
        "renormalize_logits",
    ):
        if values.get(name) is not None:
            fields[name] = values[name]
    try:
        return Generation.model_validate(fields), _warnings(values)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise CheckpointError(
            f"{checkpoint.folder}: generation default {place} = {first['input']!r}: {first['msg']}"
        ) from error


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


def _max_new_tokens(values: Mapping[str, Any], limits: Limits) -> int:
    """The asked cap, never beyond the decoder's positions; one of them is the start token."""
    room = (limits.max_total_tokens or 1024) - 1
    if values.get("max_new_tokens") is not None:
        return min(values["max_new_tokens"], room)
    if values.get("max_length") is not None:
        return min(values["max_length"] - 1, room)
    return room


def _warnings(values: Mapping[str, Any]) -> list[str]:
    asked = [
        f"{name}={values[name]!r}"
        for name, neutral in _NEUTRAL.items()
        if values.get(name) is not None and values[name] not in neutral
    ]
    ends = _ids(values.get("forced_eos_token_id"))
    long_words = any(len(word) > 1 for word in values.get("bad_words_ids") or ())
    if values.get("renormalize_logits") and (values.get("no_repeat_ngram_size") or long_words):
        asked.append("renormalize_logits=True after bans that depend on what was generated")
    if len(ends) > 1:
        asked.append(f"forced_eos_token_id={list(ends)!r} (its first is used)")
    return [f"the checkpoint asks for {one}, which is not supported and ignored" for one in asked]


def _ids(value: object) -> tuple[int, ...]:
    if value is None:
        return ()
    return tuple(value) if isinstance(value, list | tuple) else (value,)  # type: ignore[return-value]


def _single(value: object) -> int | None:
    return next(iter(_ids(value)), None)


def _first(values: Mapping[str, Any], *names: str) -> Any:
    return next((values[name] for name in names if values.get(name) is not None), None)
