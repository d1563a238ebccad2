"""Scores of the recurrent examples on texts that training never shows.

The functions under test are plain callables, so that one measure serves PyTorch, ONNX and the API.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import islice
from pathlib import Path
from random import Random

import torch
from tokenizers import Encoding, Tokenizer
from torch import Tensor, nn

from examples.history.recurrent.everyday_sentences import LANGUAGES, Spoken, everyday_sentences
from examples.history.recurrent.networks import END, NEXT, PADDING, Network, load, plain_words
from examples.history.recurrent.parts_of_speech import TaggedSentence, tagged_sentences
from examples.history.recurrent.review_templates import TemplateSplit, template_reviews
from examples.history.recurrent.tagged_phrases import Tagged
from examples.history.recurrent.tasks import padded
from examples.texts.bindings import made_up
from examples.texts.grammar import Split, sentences

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


LogProbabilities = Callable[[list[str]], list[float]]
"""Texts → the log-probability of each, its end included, given nothing."""
Spans = list[tuple[int, int, str]]
"""(start, end, tag) of each word, in characters."""
TagWords = Callable[[list[str]], list[Spans]]
Classify = Callable[[list[str]], list[str]]

TEST_COUNT, TEST_SEED = 400, 7  # reported in the model cards
PREFIXES = (5, 10, 20, 40)
"""Characters of a sentence by which its language is to be told."""
_BASELINE_SENTENCES = 20_000
_CONTENT = ("adjective", "adverb", "noun", "verb")


def bits_per_character(
    log_probabilities: LogProbabilities, split: Split, count: int, seed: int
) -> float:
    """Cross entropy of English sentences, in bits a character; the end counts as one.

    It does not depend on how a model divides text into tokens.
    """
    texts = [pair.english for pair in sentences(split, count, seed)]
    nats = -sum(log_probabilities(texts))
    return nats / math.log(2) / sum(len(text) + 1 for text in texts)


def word_perplexity(
    log_probabilities: LogProbabilities, split: Split, count: int, seed: int
) -> float:
    """Perplexity of the same sentences a word, the end included; words are between spaces."""
    texts = [pair.english for pair in sentences(split, count, seed)]
    nats = -sum(log_probabilities(texts))
    return math.exp(nats / sum(len(text.split()) + 1 for text in texts))


def tag_f1(tag: TagWords, split: Split, count: int, seed: int) -> float:
    """F1 of words with their tags: both the characters and the tag must be right."""
    truths = [one.spans() for one in islice(tagged_sentences(split, seed), count)]
    found = tag([text for text, _ in truths])
    right = sum(len({*one} & {*truth}) for one, (_, truth) in zip(found, truths, strict=True))
    return 2 * right / (sum(map(len, found)) + sum(len(truth) for _, truth in truths))


def ambiguous_accuracy(tag: TagWords, split: Split, count: int, seed: int) -> float:
    """Share of right tags among the words that have several in training."""
    known = tags_by_word()
    return _accuracy(
        tag,
        [*islice(tagged_sentences(split, seed), count)],
        lambda word: len(known[word.lower()]) > 1,
    )


def unknown_accuracy(tag: TagWords, split: Split, count: int, seed: int) -> float:
    """Share of right tags of made-up words, one in each sentence in place of a content word."""
    rng = Random(f"unknown words {seed}")
    changed: list[TaggedSentence] = []
    for sentence in tagged_sentences(split, seed):
        places = [at for at, (_, tag_) in enumerate(sentence.words) if tag_ in _CONTENT]
        if len(changed) == count:
            break
        if places:
            at = rng.choice(places)
            words = list(sentence.words)
            words[at] = (made_up(rng, "held_out"), words[at][1])
            changed.append(TaggedSentence(tuple(words), sentence.pairs))
    known = tags_by_word()
    return _accuracy(tag, changed, lambda word: word.lower() not in known)


def _accuracy(
    tag: TagWords, asked: Sequence[TaggedSentence], is_asked: Callable[[str], bool]
) -> float:
    right = total = 0
    for spans, sentence in zip(tag([one.text for one in asked]), asked, strict=True):
        found = {(start, end): label for start, end, label in spans}
        for start, end, label in sentence.spans()[1]:
            if is_asked(sentence.text[start:end]):
                total += 1
                right += found.get((start, end)) == label
    return right / max(total, 1)


def most_frequent_tags(texts: list[str]) -> list[Spans]:
    """The control: each word's most frequent tag in training, whatever the sentence."""
    known = {word: tags.most_common(1)[0][0] for word, tags in tags_by_word().items()}
    return [
        [(start, end, known.get(text[start:end].lower(), "noun")) for start, end in _words(text)]
        for text in texts
    ]


def _words(text: str) -> list[tuple[int, int]]:
    """Where words, marks and clitics lie."""
    pieces = plain_words(()).pre_tokenizer
    return [place for _, place in pieces.pre_tokenize_str(text)]


@cache
def tags_by_word() -> dict[str, Counter[str]]:
    """How often training has a word with each tag."""
    found: dict[str, Counter[str]] = defaultdict(Counter)
    drawn: list[Tagged] = [
        one.words for one in islice(tagged_sentences("train", 0), _BASELINE_SENTENCES)
    ]
    for words in drawn:
        for word, tag in words:
            found[word.lower()][tag] += 1
    return dict(found)


def template_accuracy(classify: Classify, split: TemplateSplit, count: int, seed: int) -> float:
    """Share of right sentiments of reviews by templates."""
    asked = list(islice(template_reviews(split, seed), count))
    answers = classify([review.text for review in asked])
    return sum(a == review.sentiment for a, review in zip(answers, asked, strict=True)) / count


def language_accuracy(
    classify: Classify, asked: Sequence[Spoken], prefix: int | None = None
) -> float:
    """Share of sentences whose language is found.

    Args:
        prefix: Only this many characters are shown; shorter sentences do not count.
    """
    long = [one for one in asked if prefix is None or len(one.text) >= prefix]
    answers = classify([one.text[:prefix] for one in long])
    return sum(a == one.language for a, one in zip(answers, long, strict=True)) / len(long)


def language_sentences(split: Split, count: int, seed: int) -> list[Spoken]:
    """As many sentences of each language, nearly."""
    return list(islice(everyday_sentences(split, seed), count))


def least_language_accuracy(classify: Classify, asked: Sequence[Spoken]) -> tuple[str, float]:
    """The language that is found least often, with its share."""
    answers = classify([one.text for one in asked])
    shares = {
        code: [a == code for a, one in zip(answers, asked, strict=True) if one.language == code]
        for code in LANGUAGES
    }
    means = {code: sum(right) / len(right) for code, right in shares.items()}
    worst = min(means, key=lambda code: means[code])
    return worst, means[worst]
