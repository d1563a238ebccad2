"""The head of a text encoder's checkpoint: what its weights end in, and the tasks that follow.

`architectures` of `config.json` names the head; labels and activation come from the same file, as
`transformers`' pipelines and `sentence_transformers`' cross-encoders read them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from export.checkpoint.labels import Activation, activation, labels
from export.config.config_reader import ConfigReader
from inference.errors import CheckpointError

NEXT_SENTENCE_LABELS = ("is_next", "not_next")
ANSWER_LABELS = ("start", "end")
"""Of each token, in the order of the rows of `qa_outputs`."""


class HeadKind(StrEnum):
    """What follows the encoder; the values end the names of `transformers`' classes."""

    BARE = "Model"
    MASKED = "ForMaskedLM"
    PRETRAINING = "ForPreTraining"  # masked words and the relation of two sentences
    NEXT_SENTENCE = "ForNextSentencePrediction"
    SEQUENCE = "ForSequenceClassification"
    TOKENS = "ForTokenClassification"
    ANSWER = "ForQuestionAnswering"  # where the answer to a question starts and ends


@dataclass(frozen=True)
class HeadConfig:
    """The head of one checkpoint.

    Attributes:
        labels: Of the scores of a text or of each token, by index; empty otherwise.
        activation: What turns a classifier's logits into scores.
        rerank_activation: The same for a relevance score (one label only).
        is_tied: Whether scores of the vocabulary use the embedding table.
    """

    kind: HeadKind
    labels: tuple[str, ...] = ()
    activation: Activation = "softmax"
    rerank_activation: Activation = "sigmoid"
    is_tied: bool = True

    @property
    def fills_masks(self) -> bool:
        """Whether the head scores the vocabulary."""
        return self.kind in (HeadKind.MASKED, HeadKind.PRETRAINING)

    @property
    def classifies(self) -> bool:
        """Whether the head scores whole texts."""
        return self.relates_sentences or self.kind is HeadKind.SEQUENCE

    @property
    def relates_sentences(self) -> bool:
        """Whether the classes are those of two sentences' relation."""
        return self.kind in (HeadKind.PRETRAINING, HeadKind.NEXT_SENTENCE)

    @property
    def scores_tokens(self) -> bool:
        """Whether the head scores each token of a text."""
        return self.kind in (HeadKind.TOKENS, HeadKind.ANSWER)

    @property
    def tasks(self) -> tuple[str, ...]:
        """The tasks that this head serves, the default first."""
        if self.kind is HeadKind.SEQUENCE:
            return ("rerank", "classify") if len(self.labels) == 1 else ("classify",)
        return {
            HeadKind.BARE: ("embed",),
            HeadKind.MASKED: ("fill-mask",),
            HeadKind.PRETRAINING: ("fill-mask", "classify"),
            HeadKind.NEXT_SENTENCE: ("classify",),
            HeadKind.TOKENS: ("tag",),
            HeadKind.ANSWER: ("answer",),
        }[self.kind]


def read_head(
    reader: ConfigReader,
    prefix: str,
    kinds: tuple[HeadKind, ...],
    relation: tuple[str, ...] = NEXT_SENTENCE_LABELS,
    further: Mapping[str, HeadKind] | None = None,
) -> HeadConfig:
    """The head that `architectures` names; a configuration without it is a bare encoder.

    Args:
        prefix: Of the family's classes: `Bert`.
        kinds: What the family has.
        relation: Labels of two sentences' relation.
        further: Heads of classes with other names.

    Raises:
        CheckpointError: another head; names the supported ones.
    """
    names = {prefix + kind: kind for kind in kinds} | dict(further or {})
    listed = reader.values.get("architectures") or [prefix + HeadKind.BARE]
    if not isinstance(listed, list) or listed[0] not in names:
        raise CheckpointError(
            f"{reader.place}: architectures = {listed!r} is not supported, only {', '.join(names)}"
        )
    kind = names[listed[0]]
    is_tied = reader.flag("tie_word_embeddings", True)
    if kind in (HeadKind.PRETRAINING, HeadKind.NEXT_SENTENCE):
        return HeadConfig(kind, relation, is_tied=is_tied)
    if kind is HeadKind.ANSWER:
        return answer_head(reader, is_tied=is_tied)
    if kind not in (HeadKind.SEQUENCE, HeadKind.TOKENS):
        return HeadConfig(kind, is_tied=is_tied)
    values = reader.values
    return HeadConfig(kind, labels(values), activation(values), _rerank_activation(reader), is_tied)


def answer_head(reader: ConfigReader, *, is_tied: bool = True) -> HeadConfig:
    """The head that scores where answers start and end.

    Raises:
        CheckpointError: it has other scores than these two.
    """
    if reader.values.get("num_labels", len(ANSWER_LABELS)) != len(ANSWER_LABELS):
        raise CheckpointError(f"{reader.place}: num_labels must be 2, of start and end")
    return HeadConfig(HeadKind.ANSWER, ANSWER_LABELS, is_tied=is_tied)


def _rerank_activation(reader: ConfigReader) -> Activation:
    """As `sentence_transformers`' CrossEncoder chooses it: a sigmoid unless the file names another.

    Raises:
        CheckpointError: neither sigmoid nor identity.
    """
    section = reader.values.get("sentence_transformers") or {}
    named = section.get("activation_fn")
    named = named or reader.values.get("sbert_ce_default_activation_function")
    activations: dict[str, Activation] = {"Sigmoid": "sigmoid", "Identity": "none"}
    name = "Sigmoid" if named is None else str(named).rpartition(".")[2]
    if name not in activations:
        raise CheckpointError(
            f"{reader.place}: activation_fn = {named!r} is not supported, "
            f"only {', '.join(activations)}"
        )
    return activations[name]
