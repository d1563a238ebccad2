"""Classification of a text among labels by a model of entailment (arXiv 1909.00161).

Each label makes a hypothesis, and its score is how far the text entails that, as in the pipeline
`zero-shot-classification` of `transformers`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from inference.errors import InvalidRequest
from serving.gateway.dialects.huggingface.images import LabelScore

DEFAULT_TEMPLATE = "This example is {}."
_ENTAILMENT = "entail"
"""How the label of entailment begins, in lower case."""


@dataclass(frozen=True)
class Hypotheses:
    """One hypothesis for each candidate."""

    candidates: Sequence[str]
    texts: Sequence[str]
    entailment: str
    """The model's label of entailment."""
    contradiction: str
    """The model's label that entailment is weighed against, where several labels may hold."""
    is_multi_label: bool

    @classmethod
    def of(
        cls,
        labels: Sequence[str],
        model: str,
        *,
        candidates: Sequence[str],
        template: str,
        is_multi_label: bool,
    ) -> Self:
        """The hypotheses for a model.

        Args:
            labels: The model's, in the order of its logits.
            model: Its name, for errors.
            candidates: Labels to choose from.
            template: Contains `{}`.
            is_multi_label: Whether each candidate is scored by itself.

        Raises:
            InvalidRequest: no label of the model is that of entailment, an empty candidate, or a
                template without `{}`.
        """
        found = [label for label in labels if label.lower().startswith(_ENTAILMENT)]
        if not found or len(labels) < 2:
            known = ", ".join(labels[:5]) + (", …" if len(labels) > 5 else "") or "none"
            raise InvalidRequest(
                "candidate_labels needs a classifier of entailment, with a label that begins with "
                f"{_ENTAILMENT!r}: the labels of {model} are {known}",
                field="candidate_labels",
            )
        if "{}" not in template:
            raise InvalidRequest(
                "hypothesis_template has no {} where the label belongs", field="hypothesis_template"
            )
        for index, candidate in enumerate(candidates):
            if not candidate.strip():
                field = f"candidate_labels.{index}"
                raise InvalidRequest(f"{field} is empty", field=field)
        # The choice of `transformers`: the first label, or the last one if entailment is the first.
        contradiction = labels[-1] if labels[0] == found[0] else labels[0]
        texts = [template.replace("{}", candidate) for candidate in candidates]
        return cls(candidates, texts, found[0], contradiction, is_multi_label)

    def ranked(self, logits: Sequence[Mapping[str, float]]) -> list[LabelScore]:
        """The candidates, best first.

        Args:
            logits: Of each hypothesis, by the model's labels.
        """
        entailed = np.array([row[self.entailment] for row in logits])
        if self.is_multi_label or len(logits) == 1:
            against = np.array([row[self.contradiction] for row in logits])
            scores = np.exp(-np.logaddexp(0.0, against - entailed))
        else:
            weights = np.exp(entailed - entailed.max())
            scores = weights / weights.sum()
        return [
            LabelScore(label=self.candidates[i], score=float(scores[i]))
            for i in np.argsort(-scores, kind="stable")
        ]
