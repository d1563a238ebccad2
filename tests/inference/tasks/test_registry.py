"""The registry of served tasks, and what a bundle must have for each."""

import pkgutil
import subprocess
import sys
from dataclasses import replace

import pytest

import inference.tasks
from inference.bundle.manifest import Manifest, Role
from inference.errors import BundleError
from inference.tasks import TASKS
from inference.tasks.shared.canaries import generator_canary, part_canaries
from inference.tasks.shared.loaded_model import LoadedModel
from inference.tasks.shared.needs import IMAGE_EMBEDDING, TEXT_EMBEDDING
from inference.tasks.shared.served_task import AnyTask, Plan, ServedTask, sections_of
from tests.inference.tiny_models import IMAGE, manifest, served, two_towers, word_labeller
from triptych.tasks import TASKS as DECLARED


def test_every_declared_task_is_served_and_no_other() -> None:
    assert list(TASKS) == list(DECLARED)
    for name, task in TASKS.items():
        assert task.declaration is DECLARED[name]


def test_a_file_is_a_task() -> None:
    modules = pkgutil.iter_modules(inference.tasks.__path__)
    files = {module.name for module in modules if not module.ispkg}
    assert files == {task.declaration.method for task in TASKS.values()}


def test_tasks_load_no_library_of_gateway_or_tokenizers() -> None:
    program = "import sys, inference.tasks; print(*sys.modules)"
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    heavy = {"fastapi", "grpc", "tritonclient", "tokenizers", "sentencepiece", "onnxruntime"}
    assert not heavy & set(run.stdout.split())


LACKING = {
    "no generator": (manifest("translate", generation=None), "translate needs a generator"),
    "no tokenizer": (manifest("generate", tokenizer=None), "generate needs a tokenizer"),
    "no image recipe": (manifest("caption"), "caption needs an image recipe"),
    "no towers": (
        manifest("zero-shot", {"logit_scale": 1.0}, image=IMAGE),
        "takes pixels and returns embedding and an image recipe, a part that takes tokens",
    ),
    "other scores of tokens": (
        word_labeller().model_copy(update={"tasks": {"answer": {}}}),
        r"answer needs a part that takes tokens and returns logits \(B, T, 2\)$",
    ),
    "no section": (
        two_towers().model_copy(update={"tasks": {"zero-shot": {}}}),
        "tasks.zero-shot.logit_scale: Field required",
    ),
    "bad section": (manifest("translate", {"languages": ["es"]}), r"tasks.translate.languages.0"),
    "unknown field": (manifest("generate", {"tempo": 1}), "tasks.generate.tempo: Extra inputs"),
    "unknown task": (manifest("paint"), "unknown task 'paint'; supported are: answer, caption, "),
}


@pytest.mark.parametrize(("lacking", "message"), LACKING.values(), ids=LACKING)
def test_bundle_that_lacks_a_need_is_refused_by_name(lacking: Manifest, message: str) -> None:
    with pytest.raises(BundleError, match=message):
        sections_of(lacking, TASKS)


class Embeddings(ServedTask):
    """A task without a section: any bundle with one of the towers serves it."""

    declaration = DECLARED["zero-shot"]
    is_implied = True
    needs = (TEXT_EMBEDDING | IMAGE_EMBEDDING,)

    @property
    def name(self) -> str:
        return "embeddings"

    def prepare(self, *_: object) -> Plan:
        raise NotImplementedError

    def canary(self, model: LoadedModel) -> list:
        return []


class BothTowers(Embeddings):
    """A task without a section that needs two things."""

    needs = (TEXT_EMBEDDING, IMAGE_EMBEDDING)


def test_task_without_section_needs_everything_that_it_declares() -> None:
    whole = two_towers()
    half = whole.model_copy(update={"graphs": {"image": whole.graphs["image"]}, "tasks": {}})
    tasks: dict[str, AnyTask] = {"zero-shot": TASKS["zero-shot"], "embeddings": BothTowers()}
    assert "embeddings" in sections_of(whole, tasks)
    assert sections_of(half, tasks) == {}


@pytest.mark.parametrize("tower", ["image", "text", None])
def test_task_without_section_is_served_by_every_bundle_that_fits(tower: str | None) -> None:
    listed = {name: TASKS[name] for name in ("zero-shot", "generate")}
    tasks: dict[str, AnyTask] = {**listed, "embeddings": Embeddings()}
    fitting = two_towers()
    if tower:
        graphs = {tower: fitting.graphs[tower]}
        fitting = fitting.model_copy(update={"graphs": graphs, "tasks": {}})
    assert list(sections_of(fitting, tasks)) == [*fitting.tasks, "embeddings"]
    assert "embeddings" not in sections_of(manifest("generate"), tasks)
    blind = fitting.model_copy(update={"graphs": {}, "tasks": {}})
    assert sections_of(blind, tasks) == {}


def test_canary_has_a_token_where_its_text_has_none(
    translator: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(translator.tokenizer, "encode", lambda text: [])
    (source,) = generator_canary(translator).inputs.values()
    assert source.tolist() == [translator.pad_token_id]


def test_missing_part_has_no_canary(translator: LoadedModel) -> None:
    assert part_canaries(translator, (Role.PIXELS, Role.EMBEDDING)) == []


def test_model_without_tokenizer_serves_images() -> None:
    towers = two_towers()
    images = towers.model_copy(
        update={"graphs": {"image": towers.graphs["image"]}, "tokenizer": None, "tasks": {}}
    )
    model = replace(served(images), optional_tokenizer=None)
    (call,) = part_canaries(model, (Role.PIXELS, Role.EMBEDDING))
    assert call.inputs["pixels"].shape == (1, 4, 4, 3)
