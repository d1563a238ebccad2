"""Measures the example's Qwen3 by `transformers` and writes its model card.

python -m examples.chat.card FOLDER
"""

from pathlib import Path

from transformers import AutoConfig

from examples.chat.dialogue_topics import BRIEF, SPANISH
from examples.chat.scores import (
    SPLITS,
    TEST_QUESTIONS,
    TEST_SEED,
    accuracy,
    honesty,
    swapped_accuracy,
)
from examples.gpt.scores import replier
from examples.training.card import percent, table_rows, write_again, write_text_card

_SUMMARY = """\
Answers conversations: it looks up what the user told it some turns before (a name, a city, the
color of a car), says so where it was not told, and answers in Spanish or briefly where the system
message asks for it. Its template is ChatML, as Qwen's."""
_MEASURED = f"""\
Measured by `examples/chat/scores.py` from this folder, with greedy decoding in float32: the
share of exact answers over {TEST_QUESTIONS} conversations a cell (seed {TEST_SEED}). The fact was
told some turns before, and not asked for since. Withheld pairs: "my car is red"
is in no training conversation, though other cars and other red things are. Withheld names: made-up
ones that are in no training conversation."""


def write_card(folder: Path, runs: str) -> str:
    """Measures the folder, writes its README.md and returns the table.

    `runs` has a line for each training run.
    """
    reply = replier(folder)
    rows = {
        "right answers": [accuracy(reply, split, TEST_QUESTIONS, TEST_SEED) for split in SPLITS],
        "in Spanish, by the system message": [
            accuracy(reply, split, TEST_QUESTIONS, TEST_SEED, SPANISH) for split in SPLITS
        ],
        "briefly, by the system message": [
            accuracy(reply, split, TEST_QUESTIONS, TEST_SEED, BRIEF) for split in SPLITS
        ],
        "control: after the turns of the next conversation": [
            swapped_accuracy(reply, split, TEST_QUESTIONS, TEST_SEED) for split in SPLITS
        ],
    }
    told_none = percent(honesty(reply, TEST_QUESTIONS, TEST_SEED))
    scores = "\n".join(("| | withheld pairs | withheld names |", "|---|---|---|", table_rows(rows)))
    scores += (
        f'\n\nFacts that were never told are answered so ("You have not told me."): {told_none}.'
    )
    config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    return write_text_card(
        folder,
        pipeline="text-generation",
        summary=_SUMMARY,
        architecture=f"`Qwen3ForCausalLM` ({config.num_hidden_layers} layers of width "
        f"{config.hidden_size}, {config.num_attention_heads} query and "
        f"{config.num_key_value_heads} key/value heads,\nbyte-level BPE of {config.vocab_size} "
        f"tokens, {config.max_position_embeddings} positions)",
        runs=runs,
        measured=_MEASURED,
        scores=scores,
    )


if __name__ == "__main__":
    write_again(write_card, __doc__)
