"""Systems that read texts: classifiers, taggers, models of masked words and bytes, and rankings."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from examples.bert.facts import Roles
from examples.bert.scores import (
    DOCUMENTS,
    TEST_SEED,
    agreement_accuracy,
    masked_word_accuracy,
    paraphrase_top1,
    ranking_top1,
    role_f1,
    same_words_accuracy,
    sentiment_accuracy,
)
from examples.history import task_requests
from examples.history.perceiver_text.scores import (
    masked_bytes_right,
    masked_words_right,
    most_frequent_words_right,
)
from examples.history.recurrent import scores as recurrent_scores
from examples.history.recurrent.everyday_sentences import unrelated_sentences
from examples.history.system import Ask, Curve, Group, Measure, System, percent
from examples.texts.grammar import Split

SENTIMENT = Group(
    name="sentiment",
    title="Sentiment of reviews",
    story="""The reviews of `examples/bert/reviews.py`, with negations that training never
combines with their words. Of two reviews of the same words, a bag of words gets one right.""",
    systems=(
        System(
            checkpoint="history-rnn-sentiment",
            title="LSTM, many to one",
            year=1997,
            paper="Hochreiter and Schmidhuber 1997; forget gates: Gers et al. 2000",
            idea="Gates decide what a state keeps, so that its end still has what mattered early.",
            command="python -m examples.history.recurrent.train --only history-rnn-sentiment",
        ),
        System(
            checkpoint="example-bert-sentiment",
            title="BERT with a classification head",
            year=2019,
            paper="Devlin et al., arXiv 1810.04805",
            idea="One pre-trained encoder is fine-tuned for each task, with one more layer.",
            command="python -m examples.bert.train --only example-bert-sentiment",
        ),
    ),
    measures=(
        Measure(
            "right %, withheld negations",
            percent(sentiment_accuracy, task_requests.text_classes, TEST_SEED, "compositional"),
        ),
        Measure(
            "right %, two reviews of the same words",
            percent(same_words_accuracy, task_requests.text_classes, TEST_SEED),
        ),
    ),
)


def _right(split: Split, prefix: int | None, ask: Ask, count: int) -> float:
    asked = recurrent_scores.language_sentences(split, count, recurrent_scores.TEST_SEED)
    return 100 * recurrent_scores.language_accuracy(
        partial(task_requests.text_classes, ask), asked, prefix
    )


def _unrelated(ask: Ask, count: int) -> float:
    asked = unrelated_sentences()[:count]
    return 100 * recurrent_scores.language_accuracy(partial(task_requests.text_classes, ask), asked)


LANGUAGES = Group(
    name="languages",
    title="The language of a text",
    story="""Sentences of six languages (`examples/history/recurrent/everyday_sentences.py`), read
character by character. Unrelated sentences come from no pattern: they were written for the test
    alone.""",
    systems=(
        System(
            checkpoint="history-rnn-languages",
            title="GRU over characters",
            year=2014,
            paper="Cho et al., arXiv 1406.1078",
            idea="Two gates decide what a state keeps; the last state stands for the whole text.",
            command="python -m examples.history.recurrent.train --only history-rnn-languages",
        ),
    ),
    measures=(
        Measure("right %, held out", partial(_right, "held_out", None)),
        Measure("right %, compositional", partial(_right, "compositional", None)),
        Measure("right %, unrelated sentences", _unrelated),
    ),
    curve=Curve(
        title="right %, by characters that are read",
        axis="characters",
        points=tuple(
            Measure(str(prefix), partial(_right, "held_out", prefix))
            for prefix in recurrent_scores.PREFIXES
        ),
    ),
)


def _tag(ask: Ask, texts: list[str]) -> list[Roles]:
    found = task_requests.items(ask, "tag", "texts", texts, aggregation="simple")
    return [[(one.start, one.end, one.label) for one in item.tokens] for item in found]


ROLES = Group(
    name="tagging",
    title="Roles in a sentence",
    story="""The facts of `examples/bert/facts.py`: who did what, where and when. Held-out
sentences have made-up names that training never shows.""",
    systems=(
        System(
            checkpoint="example-bert-tags",
            title="BERT with a tagging head",
            year=2019,
            paper="Devlin et al., arXiv 1810.04805",
            idea="Every token is classified from both sides of its sentence.",
            command="python -m examples.bert.train --only example-bert-tags",
        ),
    ),
    measures=(
        Measure("F1 %, withheld names", percent(role_f1, _tag, TEST_SEED, "held_out")),
        Measure("F1 %, compositional split", percent(role_f1, _tag, TEST_SEED, "compositional")),
    ),
)


def tagged(ask: Ask, texts: list[str]) -> list[recurrent_scores.Spans]:
    """Every word of each text with its tag."""
    found = task_requests.items(ask, "tag", "texts", texts, aggregation="none", return_outside=True)
    return [[(one.start, one.end, one.label) for one in item.tokens] for item in found]


PARTS_OF_SPEECH = Group(
    name="parts-of-speech",
    title="Parts of speech",
    story="""Sentences of `examples/history/recurrent/parts_of_speech.py`: "my dog ate the
assignment" is possessive, noun, verb, determiner, noun. Compositional sentences have a pair of
content words that training never combines. Many words have several parts of speech, and made-up
words none that could be known, so that only the sentence decides.""",
    systems=(
        System(
            checkpoint="history-rnn-tagger",
            title="Bidirectional LSTM",
            year=2005,
            paper="Graves & Schmidhuber 2005; Schuster & Paliwal 1997",
            idea="One network reads from the left and one from the right; each word has both.",
            command="python -m examples.history.recurrent.train --only history-rnn-tagger",
        ),
    ),
    measures=(
        Measure(
            "F1 %, held out",
            percent(recurrent_scores.tag_f1, tagged, recurrent_scores.TEST_SEED, "held_out"),
        ),
        Measure(
            "F1 %, compositional",
            percent(recurrent_scores.tag_f1, tagged, recurrent_scores.TEST_SEED, "compositional"),
        ),
        Measure(
            "right %, words with several tags, compositional",
            percent(
                recurrent_scores.ambiguous_accuracy,
                tagged,
                recurrent_scores.TEST_SEED,
                "compositional",
            ),
        ),
        Measure(
            "right %, made-up words",
            percent(
                recurrent_scores.unknown_accuracy, tagged, recurrent_scores.TEST_SEED, "held_out"
            ),
        ),
    ),
)


def _fill(ask: Ask, texts: list[str], choices: list[str]) -> list[str]:
    found = task_requests.items(ask, "fill-mask", "texts", texts, targets=choices or None, top_k=1)
    return [item.masks[0][0].token for item in found]


MASKED_WORDS = Group(
    name="fill-mask",
    title="Masked words",
    story="""English sentences of `examples/texts/grammar.py` with one masked word. Many
words are a matter of chance, so that no model reaches 100 %; the form of "be" is not.""",
    systems=(
        System(
            checkpoint="example-bert",
            title="BERT",
            year=2019,
            paper="Devlin et al., arXiv 1810.04805",
            idea="An encoder learns a language by filling in masked words, from both sides.",
            command="python -m examples.bert.train --only example-bert",
        ),
    ),
    measures=(
        Measure(
            "right word %, compositional split",
            percent(masked_word_accuracy, _fill, TEST_SEED, "compositional"),
        ),
        Measure(
            'right form of "be" %, compositional split',
            percent(agreement_accuracy, _fill, TEST_SEED, "compositional"),
        ),
    ),
)


def fill(ask: Ask, texts: list[str]) -> list[str]:
    """The most likely byte at each mask, joined."""
    found = task_requests.items(ask, "fill-mask", "texts", texts, top_k=1)
    return ["".join(mask[0].token for mask in item.masks) for item in found]


def _frequent(_ask: Ask, count: int) -> float:
    return 100 * most_frequent_words_right("compositional", count, TEST_SEED)


_ASKED: Any = (fill, TEST_SEED, "compositional")

MASKED_BYTES = Group(
    name="masked-bytes",
    title="Masked bytes",
    story="""The sentences and words of the group above, each word masked byte by byte, so that its
length is known. Every byte of a right word is the most likely one. The control has the other words
in random order; the baseline is the most frequent word of each length, which reads nothing.""",
    systems=(
        System(
            checkpoint="history-perceiver-text",
            title="Perceiver IO, over bytes",
            year=2021,
            paper="Jaegle et al., arXiv 2107.14795",
            idea="Without a vocabulary: latents read the bytes of a text, and a query for each "
            "masked byte decodes it.",
            command="python -m examples.history.perceiver_text.train",
        ),
    ),
    measures=(
        Measure("right words %, compositional split", percent(masked_words_right, *_ASKED)),
        Measure("right bytes %, compositional split", percent(masked_bytes_right, *_ASKED)),
        Measure("control: shuffled words", percent(masked_words_right, *_ASKED, is_shuffled=True)),
        Measure("baseline: most frequent word", _frequent),
    ),
)


def _rank(ask: Ask, query: str, documents: list[str]) -> int:
    (item,) = ask("rerank", {"query": query, "documents": documents})
    return int(item.results[0].index)


def _embed(ask: Ask, texts: list[str]) -> NDArray[Any]:
    return np.array([item.embedding for item in task_requests.items(ask, "embed", "texts", texts)])


RANKING = Group(
    name="ranking",
    title="The document that answers",
    story=f"""Questions about the facts of `examples/bert/facts.py`, with {DOCUMENTS}
documents each that share almost every word.""",
    systems=(
        System(
            checkpoint="example-bert-rerank",
            title="BERT as a cross-encoder",
            year=2019,
            paper="Nogueira and Cho, arXiv 1901.04085",
            idea="Query and document are read together, and one score ranks the documents.",
            command="python -m examples.bert.train --only example-bert-rerank",
        ),
    ),
    measures=(
        Measure(
            "answer first %, withheld pairs",
            percent(ranking_top1, _rank, TEST_SEED, "compositional"),
        ),
    ),
)

PARAPHRASES = Group(
    name="paraphrases",
    title="The nearest sentence",
    story="""Paraphrases of the facts of `examples/bert/facts.py` among near misses, which
share more words with the sentence than its paraphrase does.""",
    systems=(
        System(
            checkpoint="example-bert-embed",
            title="Sentence-BERT",
            year=2019,
            paper="Reimers and Gurevych, arXiv 1908.10084",
            idea="A sentence is one vector, and a cosine compares two of them.",
            command="python -m examples.bert.train --only example-bert-embed",
        ),
    ),
    measures=(
        Measure(
            "nearest %, withheld pairs",
            percent(paraphrase_top1, _embed, TEST_SEED, "compositional"),
        ),
    ),
)
