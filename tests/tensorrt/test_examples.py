"""Every stateless graph of the examples is parsed and built in every precision that it can have."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from inference.bundle.manifest import Bundle
from inference.bundle.reader import newest_bundle
from serving.tensorrt.builder import Target
from serving.tensorrt.building import Builds
from serving.tensorrt.plan_folder import PlanFolder
from tests.tensorrt.conftest import CAPABILITY
from triptych.cli import run

pytestmark = pytest.mark.full

CHECKPOINTS = Path(__file__).parents[2] / "examples" / "checkpoints"
STATELESS = (
    *("example-bert", "example-bert-embed", "example-bert-rerank", "example-bert-sentiment"),
    *("example-bert-tags", "example-clip", "example-vit"),
)
GENERATORS = (
    *("example-captioner", "example-chat", "example-en-fr", "example-es-en", "example-gpt"),
    *("example-show-attend-tell", "example-vqa"),
)
RECURRENT = ("history-rnn-tagger", "history-rnn-sentiment")
PRECISIONS = ("fp32", "fp16", "bf16")

Exported = Callable[[str, str], Bundle]


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """An example's bundle in a precision."""
    repository = tmp_path_factory.mktemp("models")

    @cache
    def export(name: str, precision: str) -> Bundle:
        bundle = f"{name}-{precision}"
        options = ["--device", "cuda", "--runtime", "tensorrt", "--precision", precision]
        where = ["--repository", str(repository), "--name", bundle]
        assert run(["export", str(CHECKPOINTS / name), *options, *where]) == 0
        return newest_bundle(repository, bundle)

    return export


def test_every_example_is_here() -> None:
    assert {path.name for path in CHECKPOINTS.glob("example-*")} == {*STATELESS, *GENERATORS}


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", STATELESS)
def test_graphs_are_built_with_all_their_profiles(
    name: str, precision: str, exported: Exported, target: Target, tmp_path: Path
) -> None:
    bundle, lines = exported(name, precision), list[str]()
    builds = Builds(PlanFolder(tmp_path), target, CAPABILITY, lines.append)
    plans = builds.ensure(bundle)
    assert plans.keys() == set(bundle.models)
    for plan in plans.values():
        assert plan.stat().st_size > 100_000
    assert builds.ensure(bundle) == plans
    assert sum("built the plan" in line for line in lines) == len(plans)


@pytest.mark.parametrize("name", RECURRENT)
def test_recurrent_classifiers_are_built_in_float32(
    name: str, exported: Exported, target: Target, tmp_path: Path
) -> None:
    builds = Builds(PlanFolder(tmp_path), target, CAPABILITY, lambda line: None)
    assert builds.ensure(exported(name, "fp32"))


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
@pytest.mark.parametrize("name", RECURRENT)
def test_recurrent_classifiers_are_refused_below_float32(
    name: str, precision: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--device", "cuda", "--runtime", "tensorrt", "--precision", precision]
    where = ["--repository", str(tmp_path), "--name", "x"]
    assert run(["export", str(CHECKPOINTS / name), *options, *where]) == 1
    assert "kernel of LSTM at opset 20 in text" in capsys.readouterr().err
    assert not any(tmp_path.iterdir())
