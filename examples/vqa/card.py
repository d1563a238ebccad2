"""Measures the example's LLaVA by `transformers` and writes its model card.

python -m examples.vqa.card FOLDER
"""

from pathlib import Path

from transformers import AutoConfig

from examples.training.card import score_table, write_again, write_text_card
from examples.vqa.scores import TEST_QUESTIONS, TEST_SEED, accuracy, answerer, swapped_accuracy

_SUMMARY = """\
Answers questions about rendered scenes of one or two things before a background: "what colour is
the upper shape?", "is the ring to the left of the star?", "how many shapes are there?", "describe
the picture." Its template is ChatML with images."""
_MEASURED = f"""\
Measured by `examples/vqa/scores.py` from this folder, with greedy decoding in float32: the share
of exact answers to {TEST_QUESTIONS} questions about as many held-out pictures (seed {TEST_SEED}).
Each picture has a combination of attributes that is in no training picture."""


def write_card(folder: Path, runs: str) -> str:
    """Measures the folder, writes its README.md and returns the table.

    `runs` has a line for each training run.
    """
    answer_all = answerer(folder)
    shares = accuracy(answer_all, TEST_QUESTIONS, TEST_SEED)
    shares["control: all, about the next picture"] = swapped_accuracy(
        answer_all, TEST_QUESTIONS, TEST_SEED
    )
    scores = "\n".join(("| questions about | right |", "|---|---|", score_table(shares)))
    config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    image, text = config.vision_config, config.text_config
    return write_text_card(
        folder,
        pipeline="image-text-to-text",
        summary=_SUMMARY,
        architecture="`LlavaForConditionalGeneration`: CLIP's image tower "
        f"({image.num_hidden_layers} layers of width\n{image.hidden_size}, patches of "
        f"{image.patch_size} pixels) and Qwen2 "
        f"({text.num_hidden_layers} layers of width {text.hidden_size}, byte-level BPE of "
        f"{text.vocab_size} tokens)",
        runs=runs,
        measured=_MEASURED,
        scores=scores,
    )


if __name__ == "__main__":
    write_again(write_card, __doc__)
