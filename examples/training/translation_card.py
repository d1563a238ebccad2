"""What the cards of both example translators share: the table of scores, and the command."""

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path

from examples.es_en.scores import remembering
from examples.texts.splits import Split
from export.training.functions import Translate

Translator = Callable[[Path, int], Translate]
"""Folder, beams → its translations."""
Score = Callable[..., float]


def score_rows(
    translator: Translator, score: Score, exact_share: Score, folder: Path, count: int, seed: int
) -> Iterator[str]:
    """BLEU and exact matches by split and decoding, and BLEU against others' references."""
    splits: tuple[Split, ...] = ("compositional", "held_out")
    for split in splits:
        for beams in (1, 4):
            translate = remembering(translator(folder, beams))
            bleu = score(translate, split, count, seed)
            exact = exact_share(translate, split, count, seed)
            decoding = "greedy" if beams == 1 else f"beam {beams}"
            yield f"| {split.replace('_', ' ')} | {decoding} | {bleu:.2f} | {100 * exact:.1f} % |"
    shuffled = score(translator(folder, 1), "compositional", count, seed, is_shuffled=True)
    yield f"| compositional, shuffled | greedy | {shuffled:.2f} | |"


def translate_texts(translator: Translator, folder: Path, description: str) -> None:
    """Translates the sentences on the command line, with the committed checkpoint by default."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("texts", nargs="+", metavar="TEXT")
    parser.add_argument("--folder", type=Path, default=folder)
    parser.add_argument("--beams", type=int, default=4)
    options = parser.parse_args()
    for translation in translator(options.folder, options.beams)(options.texts):
        print(translation)
