"""Scores of the example BERT's six tasks on texts that training never shows.

The functions under test are plain callables, so that one measure serves PyTorch, ONNX and the API.
Each measure has a control that only the words, not their order or meaning, could pass.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from transformers import (
    BertForMaskedLM,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertModel,
    BertTokenizer,
)

from examples import share_equal
from examples.bert.facts import (
    ASKED,
    Roles,
    facts,
    near_misses,
    question,
    sentence_of,
    similar_facts,
    text_of,
    worded,
    wordings,
)
from examples.bert.passages import AskedPassage, asked_passages
from examples.bert.reviews import reviews, same_words
from examples.texts.grammar import Split, sentences

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


MASK = "[MASK]"
FillFunction = Callable[[list[str], list[str]], list[str]]
"""Texts with one mask, and words to choose from (none: any) → the most likely word of each."""
ClassifyFunction = Callable[[list[str]], list[str]]
TagFunction = Callable[[list[str]], list[Roles]]
RankFunction = Callable[[str, list[str]], int]
"""Query and documents → index of the most relevant one."""
AnswerFunction = Callable[[list[str], list[str], bool], list[str]]
"""Questions, a passage of each, whether it may have no answer → answers; empty for none."""
EmbedFunction = Callable[[list[str]], NDArray[Any]]
"""Texts → (B, D), rows of unit length."""

TEST_COUNT, TEST_SEED = 400, 7  # reported in the model cards
DOCUMENTS = 5  # a query
BE = ["am", "is", "are"]
_WORD = re.compile("[A-Za-z]+")


def masked_word_accuracy(
    fill: FillFunction, split: Split, count: int, seed: int, *, is_shuffled: bool = False
) -> float:
    """Share of sentences whose one masked word is the most likely one.

    Many words are a matter of chance ("I see a dog"), so that no model reaches 1. The control has
    the other words in random order.
    """
    rng = Random(seed)
    texts: list[str] = []
    truths: list[str] = []
    for pair in sentences(split, count, seed):
        words = pair.english.split()
        asked = rng.choice([at for at, word in enumerate(words) if _WORD.search(word)])
        truths.append(_bare(words[asked]))
        words[asked] = _WORD.sub(MASK, words[asked], count=1)
        if is_shuffled:
            rng.shuffle(words)
        texts.append(" ".join(words))
    return share_equal(fill(texts, []), truths)


def agreement_accuracy(fill: FillFunction, split: Split, count: int, seed: int) -> float:
    """Share of sentences whose "am", "is" or "are" is the most likely one of the three."""
    texts: list[str] = []
    truths: list[str] = []
    for pair in sentences(split, 8 * count, seed):
        words = pair.english.split()
        places = [at for at, word in enumerate(words) if word.lower() in BE]
        if places and len(texts) < count:
            truths.append(words[places[0]].lower())
            words[places[0]] = MASK
            texts.append(" ".join(words))
    return share_equal(fill(texts, BE), truths)


def _bare(word: str) -> str:
    """The first run of letters, which the mask replaces."""
    found = _WORD.search(word)
    assert found is not None
    return found[0].lower()


def sentiment_accuracy(
    classify: ClassifyFunction, split: Split, count: int, seed: int, *, is_shuffled: bool = False
) -> float:
    """Share of reviews with the right sentiment; the control has their words in random order."""
    rng = Random(seed)
    asked = list(islice(reviews(split, seed), count))
    texts = [review.text for review in asked]
    if is_shuffled:
        texts = [" ".join(rng.sample(words, len(words))) for words in map(str.split, texts)]
    return share_equal(classify(texts), [review.sentiment for review in asked])


def same_words_accuracy(classify: ClassifyFunction, count: int, seed: int) -> float:
    """Share of right sentiments where two reviews have the same words; a bag of words gets half."""
    asked = [review for pair in same_words(count // 2, seed) for review in pair]
    answers = classify([review.text for review in asked])
    return share_equal(answers, [review.sentiment for review in asked])


def role_f1(
    tag: TagFunction, split: Split, count: int, seed: int, *, is_swapped: bool = False
) -> float:
    """F1 of whole roles: first and last character and label; the control is the next sentence's."""
    rng = Random(seed)
    asked = [text_of(rng.choice(wordings(fact))) for fact in islice(facts(split, seed), count)]
    found = tag([text for text, _ in asked])
    truths = [roles for _, roles in asked]
    if is_swapped:
        truths = truths[1:] + truths[:1]
    right = sum(len({*one} & {*truth}) for one, truth in zip(found, truths, strict=True))
    return 2 * right / max(sum(map(len, found)) + sum(map(len, truths)), 1)


def ranking_top1(
    rank: RankFunction, split: Split, count: int, seed: int, *, is_swapped: bool = False
) -> float:
    """Share of questions whose answer is ranked first among similar facts.

    The control gives each question the documents of the next one; the place that was right then
    is found by chance.
    """
    rng = Random(seed)
    queries, shown, truths = [], [], []
    for fact in islice(facts(split, seed), count):
        asked = rng.choice(ASKED)
        others = islice(similar_facts(fact, rng, split, asked), DOCUMENTS - 1)
        documents = [worded(one, rng) for one in (fact, *others)]
        order = rng.sample(range(DOCUMENTS), DOCUMENTS)
        queries.append(sentence_of(question(fact, asked)))
        shown.append([documents[at] for at in order])
        truths.append(order.index(0))
    if is_swapped:
        queries = queries[1:] + queries[:1]
    answers = [rank(query, documents) for query, documents in zip(queries, shown, strict=True)]
    return sum(answer == truth for answer, truth in zip(answers, truths, strict=True)) / count


def answer_exact(
    answer: AnswerFunction,
    split: Split,
    count: int,
    seed: int,
    *,
    has_withheld_forms: bool = False,
    is_swapped: bool = False,
) -> float:
    """Share of questions with an answer whose answer is the right words, as SQuAD measures it.

    The control gives each question the passage of the next one.
    """
    answers, truths = _answered(answer, split, count, seed, has_withheld_forms, is_swapped)
    return share_equal(*([" ".join(_words(one)) for one in each] for each in (answers, truths)))


def answer_f1(answer: AnswerFunction, split: Split, count: int, seed: int) -> float:
    """Mean F1 of the words of answers, as SQuAD measures it (Rajpurkar et al. 2016, §6.1)."""
    pairs = zip(*_answered(answer, split, count, seed, False, False), strict=True)
    return float(np.mean([_words_f1(_words(given), _words(truth)) for given, truth in pairs]))


def no_answer_accuracy(answer: AnswerFunction, split: Split, count: int, seed: int) -> float:
    """Share of right decisions whether a passage has an answer; half of them have none."""
    asked: list[AskedPassage] = []
    for has_answer in (True, False):
        drawn = (one for one in asked_passages(split, seed) if bool(one.answer) == has_answer)
        asked += islice(drawn, count // 2)
    found = answer([one.question for one in asked], [one.passage for one in asked], True)
    right = sum(bool(one.answer) == bool(text) for one, text in zip(asked, found, strict=True))
    return right / len(asked)


def _answered(
    answer: AnswerFunction,
    split: Split,
    count: int,
    seed: int,
    has_withheld_forms: bool,
    is_swapped: bool,
) -> tuple[list[str], list[str]]:
    """Given and right answers of questions that have one."""
    drawn = asked_passages(split, seed, has_withheld_forms=has_withheld_forms)
    asked = list(islice((one for one in drawn if one.answer), count))
    passages = [one.passage for one in asked]
    if is_swapped:
        passages = passages[1:] + passages[:1]
    return answer([one.question for one in asked], passages, False), [one.answer for one in asked]


def _words(text: str) -> list[str]:
    """Words in lower case, without articles and punctuation."""
    return [word for word in re.findall(r"\w+", text.lower()) if word not in ("a", "an", "the")]


def _words_f1(given: list[str], truth: list[str]) -> float:
    shared = (Counter(given) & Counter(truth)).total()
    return 2 * shared / max(len(given) + len(truth), 1)


def paraphrase_top1(
    embed: EmbedFunction, split: Split, count: int, seed: int, *, has_near_misses: bool = True
) -> float:
    """Share of sentences whose nearest neighbour is their paraphrase.

    Among the paraphrases of all of them and, by default, two near misses of each.
    """
    rng = Random(seed)
    anchors, others, near = [], [], []
    for fact in islice(facts(split, seed), count):
        first, second = rng.sample(wordings(fact), 2)
        anchors.append(sentence_of(first))
        others.append(sentence_of(second))
        near += [worded(miss, rng) for miss in near_misses(fact, rng, split)[:2]]
    candidates = embed(others + (near if has_near_misses else []))
    nearest = (embed(anchors) @ candidates.T).argmax(axis=1)
    return float(np.mean(nearest == np.arange(count)))


def shared_words_top1(split: Split, count: int, seed: int) -> float:
    """`paraphrase_top1` of a bag of words: the cosine of word counts."""
    vocabulary: dict[str, int] = {}

    def embed(texts: list[str]) -> NDArray[Any]:
        counts = np.zeros((len(texts), 4096))
        for row, text in enumerate(texts):
            for word in _WORD.findall(text.lower()):
                counts[row, vocabulary.setdefault(word, len(vocabulary))] += 1
        return counts / np.linalg.norm(counts, axis=1, keepdims=True)

    return paraphrase_top1(embed, split, count, seed)
