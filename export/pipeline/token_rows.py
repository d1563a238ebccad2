"""Tokens that a checkpoint has and its network has no embedding or score of.

`transformers` loads such a checkpoint, and fails at a text with one of them. So a checkpoint is
refused where every text of a task would have one; otherwise the texts that have one are refused
(`inference.processing.tokenizer.Rows`), and a warning lists the tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from export.tokenizer.tokenizer import TokenizerFiles
from inference.bundle.inputs import TokenizerSpec
from inference.bundle.manifest import Bundle, Manifest
from inference.errors import CheckpointError, InvalidRequest
from inference.generation import Generation
from inference.processing.templates.chat_template import ChatTemplate
from inference.processing.tokenizer import Tokenizer
from inference.processing.tokenizer_kinds import (
    FastTokenizer,
    SentencePiecePair,
    load_instruction_tokenizer,
    load_tokenizer,
)
from inference.tasks import TASKS
from inference.tasks.chat import ChatSection
from inference.tasks.fill_mask import FillMaskSection
from inference.tasks.generation.image_places import ImagePlaces
from inference.tasks.shared.length_buckets import fixed_width
from inference.tasks.shared.served_task import sections_of

_LISTED = 5
_MESSAGES = [{"role": "user", "content": ""}]
_LONGEST = 200_000


def usable_rules(rules: Generation, size: int, place: Path) -> tuple[Generation, list[str]]:
    """Generation defaults without the tokens that are never chosen, and a warning for each.

    Args:
        size: Tokens that the decoder reads and scores.
        place: The checkpoint's folder, for errors.

    Raises:
        CheckpointError: a token would be read or scored; `transformers` fails there, too.
    """
    tokens = {
        "decoder_start_token_id": rules.decoder_start_ids,
        "forced_bos_token_id": [rules.forced_bos_token_id],
        "forced_eos_token_id": [rules.forced_eos_token_id],
        "sequence_bias": list(rules.logit_bias),
        "bad_words_ids": [token for word in rules.bad_words_ids for token in word],
    }
    for name, given in tokens.items():
        for token in given:
            if token is not None and not 0 <= token < size:
                raise CheckpointError(
                    f"{place}: generation default {name} = {token} is outside the vocabulary of "
                    f"{size} tokens"
                )
    changes: dict[str, object] = {}
    warnings = []
    for field, name in (("eos_token_ids", "eos_token_id"), ("suppress_tokens", "suppress_tokens")):
        given = getattr(rules, field)
        kept = tuple(token for token in given if 0 <= token < size)
        if kept != given:
            changes[field] = kept
            outside = ", ".join(str(token) for token in given if token not in kept)
            warnings.append(
                f"the checkpoint sets {name} to {outside}, which the model has no score of: ignored"
            )
    if not 0 <= rules.pad_token_id < size:
        changes["pad_token_id"] = 0  # masked, whichever it is
    return rules.model_copy(update=changes), warnings


def usable_padding(manifest: Manifest, spec: TokenizerSpec, place: Path) -> TokenizerSpec:
    """A tokenizer's specification whose padding and first token have an embedding.

    Raises:
        CheckpointError: the model reads padding, and has no embedding of it.
    """
    rows = manifest.text_rows
    if rows is None:
        return spec
    changes: dict[str, int | None] = {}
    if not 0 <= spec.pad_token_id < rows:
        graphs = manifest.graphs.values() if manifest.generator is None else ()
        if any(fixed_width(graph) is not None for graph in graphs):
            raise CheckpointError(
                f"{place}: texts are padded with token {spec.pad_token_id}, and the model has "
                f"embeddings of tokens 0 to {rows - 1} alone"
            )
        changes["pad_token_id"] = 0  # masked, whichever it is
    if spec.bos_token_id is not None and not 0 <= spec.bos_token_id < rows:
        changes["bos_token_id"] = None
    return spec.model_copy(update=changes)


def check_texts(manifest: Manifest, files: TokenizerFiles, place: Path) -> list[str]:
    """One line for each tokenizer with tokens that the network has no embedding of.

    Args:
        files: Of the tokenizers.
        place: The checkpoint's folder, for errors.

    Raises:
        CheckpointError: every text of a task would have one.
    """
    if manifest.tokenizer is None or not files:
        return []
    with TemporaryDirectory() as folder:
        for name, content in files.items():
            (Path(folder) / name).write_bytes(content)
        bundle = Bundle(Path(folder), manifest)
        own, instructions = load_tokenizer(bundle), load_instruction_tokenizer(bundle)
    assert own is not None
    try:
        for text, special in _written_always(manifest):
            own.encode(text, add_special_tokens=special)
        if instructions is not None:
            instructions.encode("")
    except InvalidRequest as error:
        raise CheckpointError(f"{place}: every text would be refused: {error.message}") from None
    _check_ids(manifest, place)
    lines = list(_warnings(own, manifest.text_rows))
    if instructions is not None:
        lines += _warnings(instructions, manifest.source_rows)
    return lines


def _written_always(manifest: Manifest) -> Iterator[tuple[str, bool]]:
    """What texts of the tasks have whatever a request says, and whether tokens are added to it."""
    yield "a", True  # the canary's text; special tokens are added to every one
    for section in sections_of(manifest, TASKS).values():
        if isinstance(section, ChatSection):
            template = ChatTemplate(section.template, section.special_tokens)
            try:
                yield template.render(_MESSAGES, _LONGEST), False
            except InvalidRequest:
                continue  # one that takes no empty message
        images = getattr(section, "images", None)
        if isinstance(images, ImagePlaces):
            shown = "" if images.is_leading else images.laid_out(images.place, [(1, 1)])
            yield images.begin + shown + images.end, False


def _check_ids(manifest: Manifest, place: Path) -> None:
    """Refuses tokens that a task puts into texts by their ids.

    Raises:
        CheckpointError: the network has no embedding of one.
    """
    rows, images = manifest.text_rows, manifest.text_images
    ids = {} if images is None else {"an image": images.token_id}
    for section in sections_of(manifest, TASKS).values():
        if isinstance(section, FillMaskSection):
            ids["a mask"] = section.mask_token_id
    for name, token in ids.items():
        if rows is not None and token >= rows:
            raise CheckpointError(
                f"{place}: {name} is token {token}, and the model has embeddings of tokens 0 to "
                f"{rows - 1} alone"
            )


def _warnings(tokenizer: Tokenizer, rows: int | None) -> Iterator[str]:
    assert isinstance(tokenizer, FastTokenizer | SentencePiecePair)
    found = tokenizer.tokens_without_rows()
    if found:
        named = ", ".join(map(repr, found[:_LISTED])) + (" …" if len(found) > _LISTED else "")
        yield (
            f"the model has embeddings of {rows} tokens, and its tokenizer {len(found)} more: "
            f"texts with them are refused ({named})"
        )
