"""Systems that write texts: translators and language models."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from examples.en_fr import scores as gazette_scores
from examples.es_en.scores import exact_share, score
from examples.gpt import scores as gpt_scores
from examples.gpt.episodes import FRESH, Question
from examples.history import task_requests
from examples.history.recurrent.scores import (
    TEST_SEED,
    LogProbabilities,
    bits_per_character,
    word_perplexity,
)
from examples.history.system import Ask, Curve, Group, Measure, System
from examples.texts.grammar import Split

END = "<|endoftext|>"
"""Around each text, in all of the vocabularies."""

_Score = Callable[[LogProbabilities, Split, int, int], float]


def log_probabilities(ask: Ask, texts: list[str]) -> list[float]:
    """Of each text and its end, from the log-probabilities of an echoed prompt."""
    prompts = [f"{END}{text}{END}" for text in texts]
    found = task_requests.items(
        ask, "generate", "prompts", prompts, echo=True, logprobs=0, max_new_tokens=1
    )
    return [sum(token.logprob for token in item.prompt_logprobs[1:]) for item in found]


def _measured(score: _Score, split: Split, ask: Ask, count: int) -> float:
    return score(partial(log_probabilities, ask), split, count, TEST_SEED)


LANGUAGE_MODELS = Group(
    name="language-models",
    title="Language models",
    story="""English sentences of `examples/texts/grammar.py`, each scored as a whole: by the
log-probabilities that `/v1/generate` returns of an echoed prompt. Bits per character and perplexity
per word do not depend on how a model divides text into tokens, so characters, words and byte pairs
compare; lower is better. The three over words have about the same number of parameters (251,000 to
254,000) and are trained on the same paragraphs, with the same steps and learning rate. GPT-2 reads
the same paragraphs, but three quarters of its training are episodes of another kind.""",
    systems=(
        System(
            checkpoint="history-rnn-lm-words",
            title="LSTM over words",
            year=2010,
            paper="Mikolov et al. 2010; cells: Hochreiter & Schmidhuber 1997",
            idea="A state of fixed size stands for all words so far.",
            command="python -m examples.history.recurrent.train --only history-rnn-lm-words",
        ),
        System(
            checkpoint="history-rnn-lm-chars",
            title="LSTM over characters",
            year=2013,
            paper="Graves, arXiv 1308.0850",
            idea="With gates, a state lasts long enough to spell words one character at a time.",
            command="python -m examples.history.recurrent.train --only history-rnn-lm-chars",
        ),
        System(
            checkpoint="history-lstmn-lm-words",
            title="Long Short-Term Memory-Network",
            year=2016,
            paper="Cheng, Dong and Lapata, arXiv 1601.06733",
            idea="A step attends to the states of all words so far, instead of reading one.",
            command="python -m examples.history.recurrent.train --only history-lstmn-lm-words",
        ),
        System(
            checkpoint="history-nas-lm-words",
            title="Searched cell over words",
            year=2017,
            paper="Zoph and Le, arXiv 1611.01578",
            idea="A cell that no one designed: a controller chose its operations, by trial.",
            command="python -m examples.history.recurrent.train --only history-nas-lm-words",
        ),
        System(
            checkpoint="example-gpt",
            title="GPT-2 over byte pairs",
            year=2019,
            paper="Radford et al. 2019",
            idea="Each token attends to all before it instead of to one state.",
            command="python -m examples.gpt.train",
        ),
    ),
    measures=(
        Measure("bits per character, held out", partial(_measured, bits_per_character, "held_out")),
        Measure(
            "bits per character, compositional",
            partial(_measured, bits_per_character, "compositional"),
        ),
        Measure("perplexity per word, held out", partial(_measured, word_perplexity, "held_out")),
        Measure(
            "perplexity per word, compositional",
            partial(_measured, word_perplexity, "compositional"),
        ),
    ),
)


def _bleu(split: Split, ask: Ask, count: int) -> float:
    return score(partial(task_requests.translations, ask), split, count)


def _exact(ask: Ask, count: int) -> float:
    return 100 * exact_share(partial(task_requests.translations, ask), "compositional", count)


SPANISH = Group(
    name="spanish",
    title="Translation, Spanish to English",
    story="""The grammar of `examples/texts/grammar.py`. The compositional split has pairs of
a word and a construction that training never shows together.""",
    systems=(
        System(
            checkpoint="example-es-en",
            title="Transformer, as Marian has it",
            year=2018,
            paper="Junczys-Dowmunt et al., arXiv 1804.00344; Vaswani et al., arXiv 1706.03762",
            idea="""The Transformer of 2017 in a fast translation toolkit, whose checkpoints of a
thousand language pairs are published as opus-mt.""",
            command="python -m examples.es_en.train",
        ),
    ),
    measures=(
        Measure("BLEU, compositional split", partial(_bleu, "compositional")),
        Measure("BLEU, held-out sentences", partial(_bleu, "held_out")),
        Measure("exact %, compositional split", _exact),
    ),
)


def _gazette_bleu(split: Split, ask: Ask, count: int) -> float:
    return gazette_scores.score(partial(task_requests.translations, ask), split, count)


def _gazette_exact(ask: Ask, count: int) -> float:
    return 100 * gazette_scores.exact_share(
        partial(task_requests.translations, ask), "held_out", count
    )


def _of_length(first: int, last: int) -> Measure:
    def bleu(ask: Ask, count: int) -> float:
        translate = partial(task_requests.translations, ask)
        return gazette_scores.length_score(translate, first, last, max(1, count // 2))

    return Measure(f"{first} to {last}", bleu)


_TRAIN = "python -m examples.history.gazette.train --system"

GAZETTE = Group(
    name="translation",
    title="Translation, English to French",
    story="""The gazette of `examples/en_fr/gazette.py`: official sentences, each with
exactly one French rendering. The `history-*` systems have about the same number of parameters
(455,000 to 480,000) and are trained on the same sentences, words and steps, after which those
without attention were still improving: the table compares equal budgets. `example-en-fr` is larger
and was trained longer. The length is that of the English sentence in words and marks; these
sentences are of the compositional split.""",
    systems=(
        System(
            checkpoint="history-seq2seq-initial",
            title="Encoder–decoder, context as first state",
            year=2014,
            paper="Sutskever, Vinyals and Le, arXiv 1409.3215",
            idea="One network reads a sentence into a vector, another begins with it.",
            command=f"{_TRAIN} initial",
        ),
        System(
            checkpoint="history-seq2seq-context",
            title="Encoder–decoder, context at every step",
            year=2014,
            paper="Cho et al., arXiv 1406.1078",
            idea="The decoder reads the sentence's vector again at every step.",
            command=f"{_TRAIN} context",
        ),
        System(
            checkpoint="history-seq2seq-mean",
            title="Encoder–decoder, averaged context",
            year=2014,
            paper="after Cho et al., arXiv 1406.1078",
            idea="""The vector is the mean of the encoder's states: what attention would be with
equal weights.""",
            command=f"{_TRAIN} mean",
        ),
        System(
            checkpoint="history-attention",
            title="Attention, small",
            year=2015,
            paper="Bahdanau, Cho and Bengio, arXiv 1409.0473",
            idea="""The decoder looks at all states of the encoder, at every step, with weights
that it computes: no sentence has to fit into one vector.""",
            command=f"{_TRAIN} attention",
        ),
        System(
            checkpoint="example-en-fr",
            title="Attention",
            year=2015,
            paper="Bahdanau, Cho and Bengio, arXiv 1409.0473",
            idea="The same with three times the parameters.",
            command="python -m examples.en_fr.train",
        ),
        System(
            checkpoint="history-transformer",
            title="Transformer",
            year=2017,
            paper="Vaswani et al., arXiv 1706.03762",
            idea="""Attention alone: every word looks at every other in each layer, all words of a
training sentence at once.""",
            command=f"{_TRAIN} transformer",
        ),
    ),
    measures=(
        Measure("BLEU, held-out sentences", partial(_gazette_bleu, "held_out")),
        Measure("BLEU, compositional split", partial(_gazette_bleu, "compositional")),
        Measure("exact %, held-out sentences", _gazette_exact),
    ),
    curve=Curve(
        title="BLEU, by length of the sentence",
        axis="words and marks of the English sentence",
        points=tuple(_of_length(first, last) for first, last in gazette_scores.LENGTHS),
    ),
)


_SHOTS = (0, 1, 2, 4, 8)


def _answers(ask: Ask, questions: list[Question]) -> list[str]:
    return [_answer(ask, question) for question in questions]


def _answer(ask: Ask, question: Question) -> str:
    fields = {
        "prompts": [question.prompt],
        "instruction": question.instruction,
        "examples": [(example.given, example.answer) for example in question.examples],
        "max_new_tokens": gpt_scores.MAX_ANSWER,
    }
    (item,) = ask("generate", fields)
    return str(item.text)


def _right(shots: int, ask: Ask, count: int) -> float:
    share = max(1, count // len(FRESH))
    answer = partial(_answers, ask)
    return 100 * gpt_scores.mean(
        [
            gpt_scores.accuracy(answer, family, shots, share, gpt_scores.TEST_SEED)
            for family in FRESH
        ]
    )


FEW_SHOT = Group(
    name="few-shot",
    title="Tasks that only the prompt defines",
    story="""The episodes of `examples/gpt/episodes.py`: the answer follows from the
examples of the prompt and from nothing else, because their bindings are drawn anew for each
    episode.""",
    systems=(
        System(
            checkpoint="example-gpt",
            title="GPT-2, few-shot",
            year=2020,
            paper="Brown et al., arXiv 2005.14165; Radford et al. 2019",
            idea="A language model learns a task from examples in its prompt, without training.",
            command="python -m examples.gpt.train",
        ),
    ),
    measures=(Measure("right %, 4-shot, withheld bindings", partial(_right, 4)),),
    curve=Curve(
        title="right %, by examples in the prompt",
        axis="examples in the prompt",
        points=tuple(Measure(str(shots), partial(_right, shots)) for shots in _SHOTS),
    ),
)
