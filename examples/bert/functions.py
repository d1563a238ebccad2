"""The example BERT's folders as functions of texts, by `transformers` alone, in float32."""

from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import (
    BertForMaskedLM,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertModel,
    BertTokenizer,
)

from examples.bert.fact_wordings import Roles
from examples.bert.scores import (
    AnswerFunction,
    ClassifyFunction,
    EmbedFunction,
    FillFunction,
    RankFunction,
    TagFunction,
)

_BATCH = 100
_LONGEST = 15  # tokens of an answer


class _Network:
    """A saved network with its tokenizer; calls take texts in batches."""

    def __init__(self, network: Any, folder: Path) -> None:
        self.model = network.from_pretrained(folder, dtype=torch.float32).eval()
        self.tokenizer = BertTokenizer.from_pretrained(folder)

    @torch.inference_mode()
    def __call__(
        self, texts: list[str], others: list[str] | None = None
    ) -> list[tuple[Any, torch.Tensor]]:
        """Each batch's encoding and the model's first output."""
        batches = []
        for start in range(0, len(texts), _BATCH):
            end = start + _BATCH
            encoded = self.tokenizer(
                texts[start:end],
                others and others[start:end],
                padding=True,
                return_tensors="pt",
                return_offsets_mapping=True,
            )
            inputs = {name: value for name, value in encoded.items() if name != "offset_mapping"}
            batches.append((encoded, self.model(**inputs)[0]))
        return batches


def filler(folder: Path) -> FillFunction:
    """The most likely token behind the one mask of each text."""
    network = _Network(BertForMaskedLM, folder)
    tokenizer = network.tokenizer

    def fill(texts: list[str], choices: list[str]) -> list[str]:
        words: list[str] = []
        for encoded, logits in network(texts):
            masked = logits[encoded["input_ids"] == tokenizer.mask_token_id]  # (B, V)
            ids = tokenizer.convert_tokens_to_ids(choices) or list(range(masked.shape[1]))
            best = masked[:, ids].argmax(-1).tolist()
            words += tokenizer.convert_ids_to_tokens([ids[index] for index in best])
        return words

    return fill


def classifier(folder: Path) -> ClassifyFunction:
    """The label of each text."""
    network = _Network(BertForSequenceClassification, folder)
    labels = network.model.config.id2label

    def classify(texts: list[str]) -> list[str]:
        return [labels[at] for _, logits in network(texts) for at in logits.argmax(-1).tolist()]

    return classify


def tagger(folder: Path) -> TagFunction:
    """The roles of each text: a B- tag, with the I- tags of its role that follow it."""
    network = _Network(BertForTokenClassification, folder)
    labels = network.model.config.id2label

    def tag(texts: list[str]) -> list[Roles]:
        return [
            _grouped([labels[at] for at in tags], offsets)
            for encoded, logits in network(texts)
            for tags, offsets in zip(
                logits.argmax(-1).tolist(), encoded["offset_mapping"].tolist(), strict=True
            )
        ]

    return tag


def _grouped(tags: list[str], offsets: list[list[int]]) -> Roles:
    found: Any = []
    previous = ""
    for tag, (start, end) in zip(tags, offsets, strict=True):
        if start == end:
            continue
        place, _, role = tag.partition("-")
        if place == "I" and role == previous:
            found[-1] = (found[-1][0], end, role)
        elif role:
            found.append((start, end, role))
        previous = role
    return list(found)


def ranker(folder: Path) -> RankFunction:
    """The document with the highest score for the query."""
    network = _Network(BertForSequenceClassification, folder)

    def rank(query: str, documents: list[str]) -> int:
        scores = [
            score
            for _, logits in network([query] * len(documents), documents)
            for score in logits[:, 0].tolist()
        ]
        return scores.index(max(scores))

    return rank


def answerer(folder: Path) -> AnswerFunction:
    """The most likely span of each passage, widened to words, or nothing where that is likelier."""
    network = _Network(BertForQuestionAnswering, folder)

    @torch.inference_mode()
    def answer(questions: list[str], passages: list[str], may_be_none: bool) -> list[str]:
        encoded = network.tokenizer(questions, passages, padding=True, return_tensors="pt")
        output = network.model(**encoded)
        found: list[str] = []
        for row, passage in enumerate(passages):
            places = [at for at, one in enumerate(encoded.sequence_ids(row)) if one == 1]
            start, end = output.start_logits[row], output.end_logits[row]
            scores = (start[places, None] + end[places]).triu().tril(_LONGEST - 1)
            scores[torch.ones_like(scores).triu().tril(_LONGEST - 1) == 0] = -torch.inf
            first, last = divmod(int(scores.argmax()), len(places))
            is_none = may_be_none and start[0] + end[0] > scores.max()
            words = [encoded.token_to_word(row, places[at]) for at in (first, last)]
            spans = [encoded.word_to_chars(row, word, 1) for word in words]
            found.append("" if is_none else passage[spans[0].start : spans[1].end])
        return found

    return answer


def embedder(folder: Path) -> EmbedFunction:
    """The mean hidden state of each text at unit length."""
    network = _Network(BertModel, folder)

    def embed(texts: list[str]) -> Any:
        rows = []
        for encoded, hidden in network(texts):
            mask = encoded["attention_mask"][..., None]
            mean = (hidden * mask).sum(1) / mask.sum(1)
            rows.append(nn.functional.normalize(mean, dim=-1))
        return torch.cat(rows).numpy()

    return embed
