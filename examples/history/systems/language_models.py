"""Language models of the example world's English."""

from collections.abc import Callable
from functools import partial

from examples.history import task_requests
from examples.history.recurrent.scores import (
    TEST_SEED,
    LogProbabilities,
    bits_per_character,
    word_perplexity,
)
from examples.history.system import Ask, Group, Measure, System
from examples.texts.splits import Split

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


GROUP = Group(
    name="language-models",
    title="Language models",
    story="""English sentences of `examples/texts/grammar.py`, each scored as a whole: by the
log-probabilities that `/v1/generate` returns of an echoed prompt. Bits per character and perplexity
per word do not depend on how a model divides text into tokens, so characters, words and byte pairs
compare; lower is better. GPT-2 reads the same paragraphs, but three quarters of its training are
episodes of another kind.""",
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
