"""What the examples are worth: held-out scores in PyTorch, ONNX, int8 and through the served API.

`make quality` prints the table of the README, and writes each bundle's scores into its report. The
columns go through the same tasks and the same held-out data; they differ only in the runtime.
"""

from __future__ import annotations

import argparse
import io
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from PIL import Image
from rich.console import Console
from rich.table import Table

from benchmarks.local_model import LocalModel, onnx_model, torch_model
from benchmarks.lowered import lowered
from export.examples import score_gpt, score_scenes, score_translation
from export.examples.demo import serving
from export.examples.episodes import FRESH, Question
from export.quantize import Precision
from serving.bundle import newest_bundle
from serving.planning.limits import TaskLimits
from serving.tasks import caption, generate, translate, zero_shot
from triptych import Client
from triptych.tasks.caption import CaptionRequest
from triptych.tasks.generate import Example, GenerateRequest
from triptych.tasks.translate import TranslateRequest
from triptych.tasks.zero_shot import ZeroShotRequest

CHECKPOINTS = Path(__file__).parent.parent / "export" / "examples" / "checkpoints"
BUNDLES = {
    "translation": "example-es-en",
    "caption": "example-captioner",
    "zero-shot": "example-clip",
    "generation": "example-gpt",
}
"""How a measure's name begins → what it measures."""
BATCH = 32
COLUMNS = ("PyTorch", "ONNX", "int8", "served")
console = Console(highlight=False)

Item = TypeVar("Item")
Translate = Callable[[list[str]], list[str]]
Caption = Callable[[list[Image.Image]], list[str]]
Classify = Callable[[Image.Image, list[str]], str]
Answer = Callable[[list[Question]], list[str]]


@dataclass(frozen=True)
class Panel:
    """The tasks, independent of the runtime."""

    translate: Translate
    caption: Caption
    classify: Classify
    answer: Answer


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
        lambda panel, count: (
            100 * score_scenes.caption_exact_match(panel.caption, count, score_scenes.TEST_SEED)
        ),
    ),
    Measure(
        "caption, control: swapped pictures",
        lambda panel, count: (
            100 * score_scenes.swapped_caption_match(panel.caption, count, score_scenes.TEST_SEED)
        ),
    ),
    Measure(
        f"zero-shot, top-1 % of {score_scenes.CHOICES}, withheld combinations",
        lambda panel, count: (
            100 * score_scenes.zero_shot_top1(panel.classify, count, score_scenes.TEST_SEED)
        ),
    ),
    Measure(
        "zero-shot, control: swapped pictures",
        lambda panel, count: (
            100 * score_scenes.swapped_zero_shot_top1(panel.classify, count, score_scenes.TEST_SEED)
        ),
    ),
    *map(few_shot, score_gpt.SHOTS),
)


def main() -> int:
    """Measures every cell and prints the table; `--output` writes it as JSON too."""
    arguments = parse_arguments()
    measures = [measure for measure in MEASURES if measure.name.startswith(arguments.only)]
    columns: dict[str, list[float]] = {}
    for column, panel in panels(arguments.repository):
        with console.status(f"{column}: {arguments.count} items a measure"):
            columns[column] = [measure.score(panel, arguments.count) for measure in measures]
    console.print(as_table(measures, columns, arguments.count))
    if arguments.output:
        rows = {m.name: {c: columns[c][i] for c in COLUMNS} for i, m in enumerate(measures)}
        arguments.output.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
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
        report["quality"] = {"items": count, "scores": scores}
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


def panels(repository: Path) -> Iterator[tuple[str, Panel]]:
    """The columns, one after the other, so that they do not share the machine."""
    bundles = [newest_bundle(repository, name) for name in BUNDLES.values()]
    yield (
        "PyTorch",
        local_panel(
            [torch_model(CHECKPOINTS / bundle.manifest.name, bundle) for bundle in bundles]
        ),
    )
    yield "ONNX", local_panel([onnx_model(repository, bundle) for bundle in bundles])
    with tempfile.TemporaryDirectory() as folder:
        rewritten = [lowered(bundle, Precision.INT8, Path(folder)) for bundle in bundles]
        yield "int8", local_panel([onnx_model(Path(folder), bundle) for bundle in rewritten])
    with serving(repository) as url, Client(url, timeout=300) as client:
        yield "served", served_panel(client)


def local_panel(models: list[LocalModel]) -> Panel:
    """The tasks over models in this process: translator, captioner, CLIP, GPT-2."""
    translator, captioner, clip, gpt = models
    limits = TaskLimits(max_client_batch_size=BATCH)

    def translate_texts(texts: list[str]) -> list[str]:
        plan = translate.TASK.prepare(TranslateRequest(texts=texts), (), translator.model, limits)
        return [str(item.text) for item in plan.finish(translator.answer(plan.calls)).data]

    def caption_images(images: list[Image.Image]) -> list[str]:
        files = [as_png(image) for image in images]
        plan = caption.TASK.prepare(CaptionRequest(images=["-"]), files, captioner.model, limits)
        return [str(item.text) for item in plan.finish(captioner.answer(plan.calls)).data]

    def classify(image: Image.Image, labels: list[str]) -> str:
        request = ZeroShotRequest(images=["-"], labels=labels)
        plan = zero_shot.TASK.prepare(request, [as_png(image)], clip.model, limits)
        ranked = plan.finish(clip.answer(plan.calls)).data[0].labels
        assert ranked is not None
        return ranked[0].label

    def answer(question: Question) -> str:
        plan = generate.TASK.prepare(as_request(question), (), gpt.model, limits)
        return str(plan.finish(gpt.answer(plan.calls)).data[0].text)

    return Panel(
        in_batches(translate_texts), in_batches(caption_images), classify, one_by_one(answer)
    )


def served_panel(client: Client) -> Panel:
    """The tasks over a running gateway."""

    def translate_texts(texts: list[str]) -> list[str]:
        return [str(item.text) for item in client.translate(texts).data]

    def caption_images(images: list[Image.Image]) -> list[str]:
        files = [as_png(image) for image in images]
        return [str(item.text) for item in client.caption(files).data]

    def classify(image: Image.Image, labels: list[str]) -> str:
        ranked = client.zero_shot(as_png(image), labels).data[0].labels
        assert ranked is not None
        return ranked[0].label

    def answer(question: Question) -> str:
        request = as_request(question)
        answered = client.generate(
            request.prompts,
            instruction=request.instruction,
            examples=[(example.input, example.output) for example in request.examples or ()],
            max_new_tokens=request.max_new_tokens,
        )
        return str(answered.data[0].text)

    return Panel(
        in_batches(translate_texts), in_batches(caption_images), classify, one_by_one(answer)
    )


def as_request(question: Question) -> GenerateRequest:
    """A question as a request for the most probable answer."""
    examples = [Example(input=one.given, output=one.answer) for one in question.examples]
    return GenerateRequest(
        prompts=[question.prompt],
        instruction=question.instruction,
        examples=examples,
        max_new_tokens=score_gpt.MAX_ANSWER,
    )


def one_by_one(answer: Callable[[Question], str]) -> Answer:
    """The same function over many; each question has examples of its own."""
    return lambda questions: [answer(question) for question in questions]


def in_batches(call: Callable[[list[Item]], list[str]]) -> Callable[[list[Item]], list[str]]:
    """The same function, called for `BATCH` items at a time."""

    def batched(items: list[Item]) -> list[str]:
        starts = range(0, len(items), BATCH)
        return [answer for start in starts for answer in call(items[start : start + BATCH])]

    return batched


def as_png(image: Image.Image) -> bytes:
    """An image as a lossless file."""
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


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
