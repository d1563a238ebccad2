"""What the examples are worth: held-out scores in PyTorch, ONNX, int8 and through the served API.

`make quality` prints the table of examples/quality.md, and writes each bundle's scores into its
report. The columns go through the same tasks and the same held-out data;
they differ only in the runtime.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.harness.machine import processor
from benchmarks.local_model import LocalModel, lowered, onnx_model, torch_model
from benchmarks.panel import Panel, local_responses, served_responses
from examples.bert import scores as score_bert
from examples.chat import scores as score_chat
from examples.chat.dialogue_topics import SPANISH
from examples.demo.server import serving
from examples.es_en import scores as score_translation
from examples.gpt import scores as score_gpt
from examples.gpt.episodes import FRESH
from examples.history.system import percent
from examples.scenes import scores as score_scenes
from examples.vit import scores as score_vit
from examples.vqa import scores as score_vqa
from export.precision import Precision
from inference.bundle.reader import newest_bundle
from triptych import Client

CHECKPOINTS = Path(__file__).parent.parent / "examples" / "checkpoints"
BUNDLES = {
    "translation": "example-es-en",
    "caption": "example-captioner",
    "zero-shot": "example-clip",
    "generation": "example-gpt",
    "chat": "example-chat",
    "fill-mask": "example-bert",
    "sentiment": "example-bert-sentiment",
    "tags": "example-bert-tags",
    "rerank": "example-bert-rerank",
    "answers": "example-bert-answer",
    "paraphrases": "example-bert-embed",
    "image classes": "example-vit",
    "questions about pictures": "example-vqa",
}
"""How a measure's name begins → what it measures."""
COLUMNS = ("PyTorch", "ONNX", "int8", "served")
console = Console(highlight=False)


@dataclass(frozen=True)
class Measure:
    """One row of the table."""

    name: str
    score: Callable[[Panel, int], float]


def few_shot(shots: int) -> Measure:
    """Questions of every family, with answers that follow from the examples alone."""

    def score(panel: Panel, count: int) -> float:
        share = max(1, count // len(FRESH))
        shares = [
            score_gpt.accuracy(panel.answer, family, shots, share, score_gpt.TEST_SEED)
            for family in FRESH
        ]
        return 100 * score_gpt.mean(shares)

    return Measure(f"generation, right %, {shots}-shot, withheld bindings", score)


MEASURES = (
    Measure(
        "translation, BLEU, compositional split",
        lambda panel, count: score_translation.score(panel.translate, "compositional", count),
    ),
    Measure(
        "translation, BLEU, held-out sentences",
        lambda panel, count: score_translation.score(panel.translate, "held_out", count),
    ),
    Measure(
        "translation, control: shuffled sources",
        lambda panel, count: score_translation.score(
            panel.translate, "compositional", count, is_shuffled=True
        ),
    ),
    Measure(
        "caption, exact match %, withheld combinations",
        percent(score_scenes.caption_exact_match, Panel.caption, score_scenes.TEST_SEED),
    ),
    Measure(
        "caption, control: swapped pictures",
        percent(score_scenes.swapped_caption_match, Panel.caption, score_scenes.TEST_SEED),
    ),
    Measure(
        f"zero-shot, top-1 % of {score_scenes.CHOICES}, withheld combinations",
        percent(score_scenes.zero_shot_top1, Panel.choose, score_scenes.TEST_SEED),
    ),
    Measure(
        "zero-shot, control: swapped pictures",
        percent(score_scenes.swapped_zero_shot_top1, Panel.choose, score_scenes.TEST_SEED),
    ),
    *map(few_shot, score_gpt.SHOTS),
    Measure(
        "chat, right %, withheld pairs",
        percent(score_chat.accuracy, Panel.reply, score_chat.TEST_SEED, "compositional"),
    ),
    Measure(
        "chat, right %, withheld names",
        percent(score_chat.accuracy, Panel.reply, score_chat.TEST_SEED, "held_out"),
    ),
    Measure(
        "chat, right %, in Spanish by the system message",
        percent(
            score_chat.accuracy, Panel.reply, score_chat.TEST_SEED, "compositional", style=SPANISH
        ),
    ),
    Measure(
        "chat, facts not told: said so %",
        percent(score_chat.honesty, Panel.reply, score_chat.TEST_SEED),
    ),
    Measure(
        "chat, control: turns of another conversation",
        percent(score_chat.swapped_accuracy, Panel.reply, score_chat.TEST_SEED, "compositional"),
    ),
    Measure(
        "fill-mask, right word %, compositional split",
        percent(score_bert.masked_word_accuracy, Panel.fill, score_bert.TEST_SEED, "compositional"),
    ),
    Measure(
        'fill-mask, right form of "be" %',
        percent(score_bert.agreement_accuracy, Panel.fill, score_bert.TEST_SEED, "compositional"),
    ),
    Measure(
        "sentiment, right %, withheld negations",
        percent(
            score_bert.sentiment_accuracy,
            Panel.classify_texts,
            score_bert.TEST_SEED,
            "compositional",
        ),
    ),
    Measure(
        "sentiment, right %, two reviews of the same words",
        percent(score_bert.same_words_accuracy, Panel.classify_texts, score_bert.TEST_SEED),
    ),
    Measure(
        "tags, F1 %, withheld names",
        percent(score_bert.role_f1, Panel.tag, score_bert.TEST_SEED, "held_out"),
    ),
    Measure(
        f"rerank, answer first of {score_bert.DOCUMENTS} %, withheld pairs",
        percent(score_bert.ranking_top1, Panel.rank, score_bert.TEST_SEED, "compositional"),
    ),
    Measure(
        "answers, exact match %, withheld names",
        percent(score_bert.answer_exact, Panel.find_answers, score_bert.TEST_SEED, "held_out"),
    ),
    Measure(
        "answers, F1 %, withheld names",
        percent(score_bert.answer_f1, Panel.find_answers, score_bert.TEST_SEED, "held_out"),
    ),
    Measure(
        "answers, exact match %, withheld names and forms of questions",
        percent(
            score_bert.answer_exact,
            Panel.find_answers,
            score_bert.TEST_SEED,
            "held_out",
            has_withheld_forms=True,
        ),
    ),
    Measure(
        "answers, control: passages of other questions",
        percent(
            score_bert.answer_exact,
            Panel.find_answers,
            score_bert.TEST_SEED,
            "held_out",
            is_swapped=True,
        ),
    ),
    Measure(
        "answers, right whether there is one %, withheld names",
        percent(
            score_bert.no_answer_accuracy, Panel.find_answers, score_bert.TEST_SEED, "held_out"
        ),
    ),
    Measure(
        "paraphrases, nearest %, withheld pairs",
        percent(score_bert.paraphrase_top1, Panel.embed, score_bert.TEST_SEED, "compositional"),
    ),
    Measure(
        "image classes, right %, withheld combinations",
        percent(score_vit.class_accuracy, Panel.classify_images, score_vit.TEST_SEED),
    ),
    Measure(
        "image classes, control: swapped pictures",
        percent(
            score_vit.class_accuracy, Panel.classify_images, score_vit.TEST_SEED, is_swapped=True
        ),
    ),
    Measure(
        "image classes, attention on the thing %",
        lambda panel, count: (
            100
            * score_vit.attention_shares(panel.attend, count, score_vit.TEST_SEED)[
                "attention on the largest thing"
            ]
        ),
    ),
    Measure(
        "questions about pictures, right %, withheld combinations",
        lambda panel, count: (
            100 * score_vqa.accuracy(panel.answer_about, count, score_vqa.TEST_SEED)["all"]
        ),
    ),
    Measure(
        "questions about pictures, control: swapped pictures",
        percent(score_vqa.swapped_accuracy, Panel.answer_about, score_vqa.TEST_SEED),
    ),
)


def main() -> int:
    """Measures every cell and prints the table; `--output` writes it as JSON too."""
    arguments = parse_arguments()
    measures = [measure for measure in MEASURES if measure.name.startswith(arguments.only)]
    columns: dict[str, list[float]] = {}
    for column, panel in panels(arguments.repository, measured_bundles(measures)):
        with console.status(f"{column}: {arguments.count} items a measure"):
            columns[column] = [measure.score(panel, arguments.count) for measure in measures]
    console.print(as_table(measures, columns, arguments.count))
    if arguments.output:
        rows = {m.name: {c: columns[c][i] for c in COLUMNS} for i, m in enumerate(measures)}
        found = {"processor": processor(), "rows": rows}
        arguments.output.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    if arguments.record:
        record(arguments.repository, measures, columns, arguments.count)
    return 0


def record(
    repository: Path,
    measures: Sequence[Measure],
    columns: dict[str, list[float]],
    count: int,
) -> None:
    """Writes each bundle's scores into its report, under `quality`."""
    for task, name in BUNDLES.items():
        scores = {
            measure.name: {column: round(columns[column][index], 2) for column in COLUMNS}
            for index, measure in enumerate(measures)
            if measure.name.startswith(task)
        }
        if not scores:
            continue
        bundle = newest_bundle(repository, name)
        path = bundle.path(bundle.manifest.report)
        report = json.loads(path.read_text(encoding="utf-8"))
        report["quality"] = {"items": count, "processor": processor(), "scores": scores}
        half = path.with_name(f".{path.name}.new")
        half.write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        half.replace(path)


def parse_arguments() -> argparse.Namespace:
    """Flags of `python -m benchmarks.quality`."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repository", type=Path, default=Path("model_repository"))
    parser.add_argument("--count", type=int, default=200, help="items a measure (%(default)s)")
    parser.add_argument("--only", default="", help="measures whose name begins so, e.g. caption")
    parser.add_argument("--record", action="store_true", help="write scores into the reports")
    parser.add_argument("--output", type=Path, help="write the table as JSON")
    return parser.parse_args()


def measured_bundles(measures: Sequence[Measure]) -> list[str]:
    """Names of the bundles that these measures need."""
    names = [measure.name for measure in measures]
    return [
        bundle for task, bundle in BUNDLES.items() if any(name.startswith(task) for name in names)
    ]


def panels(repository: Path, names: Sequence[str]) -> Iterator[tuple[str, Panel]]:
    """The columns, one after the other, so that they do not share the machine."""
    bundles = [newest_bundle(repository, name) for name in names]
    yield (
        "PyTorch",
        local_panel(torch_model(CHECKPOINTS / bundle.manifest.name, bundle) for bundle in bundles),
    )
    yield "ONNX", local_panel(onnx_model(repository, bundle) for bundle in bundles)
    with tempfile.TemporaryDirectory() as folder:
        rewritten = [lowered(bundle, Precision.INT8, Path(folder)) for bundle in bundles]
        yield "int8", local_panel(onnx_model(Path(folder), bundle) for bundle in rewritten)
    with serving(repository) as url, Client(url, timeout=300) as client:
        yield "served", Panel(served_responses(client))


def local_panel(models: Iterable[LocalModel]) -> Panel:
    """The tasks over models in this process."""
    return Panel(local_responses({model.model.name: model for model in models}))


def as_table(measures: Sequence[Measure], columns: dict[str, list[float]], count: int) -> Table:
    """The measured scores, one row a measure."""
    table = Table("measure", title=f"{count} held-out items a measure")
    for column in COLUMNS:
        table.add_column(column, justify="right")
    for index, measure in enumerate(measures):
        table.add_row(measure.name, *(f"{columns[column][index]:.1f}" for column in COLUMNS))
    return table


if __name__ == "__main__":
    sys.exit(main())
