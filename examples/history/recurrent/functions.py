"""The recurrent examples' folders as functions of texts, by `torch.nn` alone, in float32."""

from collections.abc import Iterator
from pathlib import Path

import torch
from tokenizers import Encoding, Tokenizer
from torch import Tensor, nn

from examples.history.recurrent.networks import NEXT, Network, load
from examples.history.recurrent.scores import Classify, LogProbabilities, TagWords
from examples.history.recurrent.tasks import padded
from examples.history.recurrent.tokenizers import END, PADDING

_BATCH = 100


class RecurrentFolder:
    """A saved network with its tokenizer."""

    def __init__(self, folder: Path) -> None:
        self.network: Network = load(folder)
        self.labels = list(self.network.config.get("id2label", {}).values())
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))

    @torch.inference_mode()
    def batches(self, texts: list[str]) -> Iterator[tuple[list[Encoding], Tensor, Tensor]]:
        """Each batch's encodings, token ids and logits; generators read the end around a text."""
        for start in range(0, len(texts), _BATCH):
            encodings = self._tokenizer.encode_batch(texts[start : start + _BATCH])
            rows = [list(one.ids) for one in encodings]
            if self.network.kind == NEXT:
                rows = [[END, *ids, END] for ids in rows]
            tokens, lengths = padded(rows, PADDING)
            yield encodings, tokens, self.network(tokens, lengths)


def text_classifier(folder: Path) -> Classify:
    """The label of each text."""
    opened = RecurrentFolder(folder)

    def classify(texts: list[str]) -> list[str]:
        return [
            opened.labels[at]
            for _, _, logits in opened.batches(texts)
            for at in logits.argmax(-1).tolist()
        ]

    return classify


def word_tagger(folder: Path) -> TagWords:
    """The tag of each word."""
    opened = RecurrentFolder(folder)

    def tag(texts: list[str]) -> list[list[tuple[int, int, str]]]:
        return [
            [
                (start, end, opened.labels[at])
                for (start, end), at in zip(one.offsets, best[: len(one.ids)], strict=True)
            ]
            for encodings, _, logits in opened.batches(texts)
            for one, best in zip(encodings, logits.argmax(-1).tolist(), strict=True)
        ]

    return tag


def scorer(folder: Path) -> LogProbabilities:
    """The log-probability of each text and its end."""
    opened = RecurrentFolder(folder)

    def log_probabilities(texts: list[str]) -> list[float]:
        found: list[float] = []
        for _, tokens, logits in opened.batches(texts):
            following = tokens[:, 1:]
            each = nn.functional.cross_entropy(
                logits[:, :-1].flatten(0, 1),
                following.flatten(),
                ignore_index=PADDING,
                reduction="none",
            )
            found += (-each.view(following.shape).sum(1)).tolist()
        return found

    return log_probabilities
