"""`triptych export` from a folder to a bundle, and its failures in one line."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import typer
from onnx import numpy_helper
from torch import nn
from typer.testing import CliRunner

from export.architecture import Lowering
from export.graphs import external_data
from export.graphs.external_data import data_path, open_graph, values
from export.models.encoder_decoders.bart import Bart
from export.pipeline.cli import export, is_published_default
from export.pipeline.manifest import Request
from export.registry import architecture, families
from export.targets import target
from inference.bundle.manifest import Manifest
from inference.bundle.reader import newest_bundle, versions
from inference.errors import SetupError
from tests.export.conftest import Bundles, Twins
from tests.export.saved_folders import write_pieces
from tests.inference.tiny_models import make_manifest

app = typer.Typer()
app.command()(export)


def _run(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


@pytest.fixture
def source(twins: Twins, tmp_path: Path) -> Path:
    """A Marian checkpoint with tokenizer files."""
    folder = tmp_path / "opus-mt-es-en"
    shutil.copytree(twins("marian", "odd").checkpoint.folder, folder)
    for side in ("source", "target"):
        write_pieces(folder / f"{side}.spm")
    (folder / "vocab.json").write_text(json.dumps({"</s>": 0, "<unk>": 1, "<pad>": 63}))
    (folder / "README.md").write_text("---\nlicense: cc-by-4.0\n---\n")
    return folder


@pytest.fixture
def exported(bundles: Bundles, monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs of the same network, exported once for all tests."""
    folder = bundles("marian", "odd").folder

    def copy(lowering: Lowering, path: Path) -> None:
        shutil.copy(folder / lowering.graph.file, path)

    monkeypatch.setattr("export.targets.target.to_onnx", copy)


@pytest.mark.usefixtures("exported")
def test_int8_bundle_is_published_with_its_int8_cache(source: Path, tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    code, output = _run(source, "--repository", repository, "--precision", "int8")
    assert code == 0, output
    assert "int8 cache: cosine at least 0.99" in output
    bundle = newest_bundle(repository, "opus-mt-es-en")
    caches = [state for state in bundle.manifest.states if state.layout == "in_place"]
    assert {state.dtype for state in caches} == {"int8"}
    ports = [i for i in bundle.manifest.graphs["step"].inputs if i.name.startswith("past_")]
    model = onnx.load(str(bundle.path("step.onnx")))
    kinds = {value.name: value.type.tensor_type.elem_type for value in model.graph.input}
    assert [(port.dtype, kinds[port.name]) for port in ports] == [
        ("int8", onnx.TensorProto.INT8)
    ] * len(caches)


@pytest.mark.usefixtures("exported")
@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_alignment_repeats_no_weights_of_the_other_graphs(
    precision: str, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, sharing = tmp_path / "plain", tmp_path / "sharing"
    for repository, limit in ((plain, external_data.SHARING_BYTES), (sharing, 0)):
        monkeypatch.setattr(external_data, "SHARING_BYTES", limit)
        code, output = _run(source, "--repository", repository, "--precision", precision)
        assert code == 0, output
    old, new = (newest_bundle(each, "opus-mt-es-en") for each in (plain, sharing))
    assert data_path(new.path("admit.onnx")).is_file()
    read = {
        name: [open_graph(bundle.path(name)) for bundle in (old, new)]
        for name in ("admit.onnx", "step.onnx", "align.onnx")
    }
    for models in read.values():
        pairs = zip(*(model.graph.initializer for model in models), strict=True)
        for want, got in pairs:
            np.testing.assert_array_equal(values(got, new.folder), values(want, old.folder))
    own = [each.name for each in read["align.onnx"][1].graph.initializer if _lies_in(each, "align")]
    # projections of the decoder's attention, which `step` has in another layout
    layers = json.loads((source / "config.json").read_text())["decoder_layers"]
    assert len(own) <= 4 * layers, own


def _lies_in(tensor: onnx.TensorProto, graph: str) -> bool:
    return any(entry.value == f"{graph}.onnx.data" for entry in tensor.external_data)


@pytest.mark.usefixtures("exported")
def test_weights_are_freed_before_int8(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large checkpoint's float32 weights would stay in memory beside two sets of graphs."""
    networks: list[nn.Module] = []  # as torch.export refers to its weights
    built = Bart.__init__

    def build(network: Bart, *arguments: Any, **options: Any) -> None:
        built(network, *arguments, **options)
        networks.append(network)

    def lower_precision(*arguments: object) -> Manifest:
        (network,) = (each for each in networks if not next(each.parameters()).is_meta)
        assert sum(each.untyped_storage().nbytes() for each in network.parameters()) == 0
        raise SetupError("stop here")

    monkeypatch.setattr(Bart, "__init__", build)
    monkeypatch.setattr("export.targets.target.lower_precision", lower_precision)
    code, output = _run(source, "--repository", tmp_path / "r", "--precision", "int8")
    assert (code, "stop here" in output) == (1, True), output


@pytest.mark.usefixtures("exported")
def test_folder_becomes_a_verified_bundle_and_stays_up_to_date(
    source: Path, tmp_path: Path
) -> None:
    repository = tmp_path / "repository"
    code, output = _run(source, "--repository", repository, "--default")
    assert code == 0
    assert "opus-mt-es-en version 1 is published" in output
    assert "the languages are unknown" not in output
    bundle = newest_bundle(repository, "opus-mt-es-en")
    manifest = bundle.manifest
    assert manifest.tasks == {"translate": {"languages": [["es", "en"]]}}
    assert manifest.licence == "cc-by-4.0"
    assert manifest.default
    report = json.loads(bundle.path(manifest.report).read_text())
    assert report["worst_difference"] < report["tolerance"] == 1e-5
    assert report["tokens"]["compared"] == 50
    assert report["tokens"]["differences"] == []

    for again in (["--default"], []):  # without the flag the published one is kept
        code, output = _run(source, "--repository", repository, *again)
        assert (code, output) == (0, "opus-mt-es-en version 1 is up to date\n")
    assert versions(repository / "opus-mt-es-en") == [1]
    assert is_published_default(repository, "opus-mt-es-en")


@pytest.mark.usefixtures("exported")
def test_translator_of_unknown_languages_is_a_warning(source: Path, tmp_path: Path) -> None:
    code, output = _run(source.rename(tmp_path / "opus"), "--repository", tmp_path / "repository")
    assert code == 0
    assert "warning: the languages are unknown" in output
    assert "NAME-es-en" in output


def test_new_version_keeps_the_default_flag_of_the_published_one(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests: list[Request] = []
    monkeypatch.setattr(
        "export.pipeline.cli._export", lambda _, request, __: requests.append(request)
    )
    repository = tmp_path / "repository"
    arguments = (source, "--repository", repository)
    for is_published in (None, False, True):
        if is_published is not None:
            write_manifest(repository / "opus-mt-es-en", is_default=is_published)
        for flags in ([], ["--default"], ["--no-default"]):
            assert _run(*arguments, *flags)[0] == 0
    kept = [request.is_default for request in requests]
    assert kept == [False, True, False] * 2 + [True, True, False]


def write_manifest(folder: Path, *, is_default: bool) -> None:
    """A published version without graphs."""
    manifest = make_manifest(folder.name, "translate", {}, default=is_default)
    (folder / "1").mkdir(parents=True, exist_ok=True)
    (folder / "1" / "bundle.json").write_text(manifest.model_dump_json())


def test_help_of_task_lists_those_that_an_architecture_declares() -> None:
    code, output = _run("--help")
    assert code == 0
    text = " ".join(output.replace("│", " ").split()).replace("- ", "-")  # wrapped within a name
    (listed,) = re.findall(r"if the model has several: ([^.]+)\.", text)
    declared = {task for name in families() for task in architecture(name).tasks}
    assert set(listed.split(", ")) == declared


def test_help_imports_no_models() -> None:
    program = """
import sys, triptych.cli
assert triptych.cli.run(["export", "--help"]) == 0
sys.exit(" ".join(name for name in sys.modules if name.startswith("export.models.")) or 0)
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert "--task" in run.stdout


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--task", "caption"], "cannot serve 'caption'"),
        (["--name", "Not A Name"], "cannot be a model's name"),
        (["--name", "../elsewhere"], "cannot be a model's name"),
    ],
)
def test_impossible_option_is_one_line_and_exit_code_one(
    source: Path, tmp_path: Path, options: list[str], message: str
) -> None:
    code, output = _run(source, "--repository", tmp_path / "repository", *options)
    assert code == 1
    assert output.startswith("error: ")
    assert message in output
    assert output.count("\n") == 1


def test_damaged_weights_publish_nothing(source: Path, tmp_path: Path) -> None:
    weights = source / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    code, output = _run(source, "--repository", tmp_path / "repository")
    assert code == 1
    assert "damaged or truncated" in output
    assert not (tmp_path / "repository").exists()


@pytest.mark.usefixtures("exported")
def test_failed_gate_publishes_nothing(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("export.targets.target.to_onnx", partial(_change_a_weight, target.to_onnx))
    code, output = _run(source, "--repository", tmp_path / "repository")
    assert code == 1
    assert "ONNX differs from the float64 network" in output
    assert list((tmp_path / "repository").iterdir()) == []


def _change_a_weight(
    export_graph: Callable[[Lowering, Path], None], lowering: Lowering, path: Path
) -> None:
    """Exports, then changes a weight."""
    export_graph(lowering, path)
    model = onnx.load(str(path))
    weight = next(tensor for tensor in model.graph.initializer if len(tensor.dims) == 2)
    values = numpy_helper.to_array(weight).copy()
    values[..., ::2] += 1e-3
    weight.CopyFrom(numpy_helper.from_array(values, weight.name))
    onnx.save_model(model, str(path))


def test_repository_that_cannot_be_made_is_one_line(source: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    code, output = _run(source, "--repository", tmp_path / "file" / "repository")
    assert code == 1
    assert output.splitlines()[-1].startswith("error: ")
