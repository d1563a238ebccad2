"""Encoded texts to calls of a stateless part; equal texts of a request share a row."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from inference.bundle.manifest import Part, Role
from inference.processing.tokenizer import EncodedText
from inference.tasks.shared.length_buckets import Bucket, buckets
from inference.tasks.shared.loaded_model import LoadedModel
from inference.tasks.shared.model_calls import Array, InferCall
from inference.tasks.shared.rows import Row

Further = Callable[[Bucket], Mapping[Role, Array]] | None
"""Further inputs of a batch, beside tokens, lengths and segments; None: there are none."""


@dataclass
class TextRows:
    """The texts of one request, filled by `add` and then batched by length."""

    model: LoadedModel
    texts: list[EncodedText] = field(default_factory=list)
    """Different ones, in the order in which they were added."""
    _numbers: dict[tuple[tuple[int, ...], tuple[int, ...]], int] = field(default_factory=dict)

    def add(self, text: EncodedText) -> int:
        """The text's number among the different ones."""
        number = self._numbers.setdefault((tuple(text.ids), tuple(text.segments)), len(self.texts))
        if number == len(self.texts):
            self.texts.append(text)
        return number

    def batch(
        self, part: Part, returns: tuple[Role, ...], calls: list[InferCall], further: Further = None
    ) -> Sequence[Row]:
        """Adds calls for all texts to `calls`: the row of each text, by its number.

        Args:
            part: The part that runs them; it gets those inputs that its graph has.
            returns: Outputs.
            calls: The plan's.
            further: Further inputs, by the numbers of the texts of a batch.
        """
        rows: dict[int, Row] = {}
        sequences = [text.ids for text in self.texts]
        limit = self.model.manifest.limits.max_input_tokens
        padding = self.model.padding(part.graph)
        for bucket in buckets(sequences, padding, limit, self.model.sizes):
            for position, number in enumerate(bucket.rows):
                rows[number] = Row(len(calls), position)
            calls.append(InferCall.of(part, self._inputs(part, bucket, further), returns))
        return [rows[number] for number in range(len(self.texts))]

    def _inputs(self, part: Part, bucket: Bucket, further: Further) -> dict[Role, Array]:
        inputs: dict[Role, Array] = {
            Role.TOKENS: bucket.token_ids,
            Role.LENGTHS: bucket.lengths,
            **(further(bucket) if further else {}),
        }
        if part.graph.input(Role.SEGMENTS):
            own = [self.texts[number].segments for number in bucket.rows]
            width = bucket.token_ids.shape[1]
            inputs[Role.SEGMENTS] = bucket.padding.padded(own, width, 0)
        return {role: array for role, array in inputs.items() if part.graph.input(role)}
