"""What tasks, heads and precisions need of a bundle."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
import typer
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from examples import CHECKPOINTS
from export.architecture import Architecture
from export.checkpoint.checkpoint import Checkpoint
from export.graphs.source_model import SourceModel
from export.parity.graph_runs import bundle_path, onnx_run
from export.parity.judge import TOLERANCE
from export.parity.parity_inputs import Admitted, Probe, StepLoop
from export.parity.verify import verify
from export.pipeline.cli import export
from export.pipeline.manifest import Request, build_manifest
from export.precision import Device, Precision, Runtime, check_device
from export.registry import architecture
from export.tokenizer.tokenizer import fast_tokenizer
from inference.bundle.manifest import Manifest
from inference.errors import BundleError, SetupError
from tests.export.conftest import Bundles, Twins, lowered
from tests.export.faults import faults_encoders
from tests.export.oracle import difference
from tests.export.tokenizer.tiny_tokenizers import write_folder
from tests.export.twins import generators, twin_of

CONFIG = next(iter(twin_of("clip").configs))


def manifest_of(twins: Twins, declared: Architecture) -> Manifest:
    twin = twins("clip", CONFIG)
    source = SourceModel(twin.checkpoint, declared)
    source.preprocessing = twin.prepared
    return build_manifest(Request("twin"), 1, source, twin.graphs())[0]


def test_sections_are_those_that_the_task_reads(twins: Twins) -> None:
    manifest = manifest_of(twins, architecture("clip"))
    assert set(manifest.tasks["zero-shot"]) == {"logit_scale"}


@pytest.mark.parametrize(
    ("task", "section", "message"),
    [
        ("zero-shot", {}, "twin: tasks.zero-shot.logit_scale: Field required"),
        ("zero-shot", {"logit_scale": 1.0, "tempo": 2}, "tasks.zero-shot.tempo: Extra inputs"),
        ("generate", {}, "twin: generate needs a generator"),
        ("paint", {}, "unknown task 'paint'"),
    ],
)
def test_missing_need_is_named(twins: Twins, task: str, section: dict, message: str) -> None:
    declared = replace(architecture("clip"), tasks={task: lambda *_: section})
    with pytest.raises(BundleError, match=message):
        manifest_of(twins, declared)


ONNX = Runtime.ONNXRUNTIME


@pytest.mark.parametrize("precision", [Precision.FP32, Precision.FP16, Precision.BF16])
def test_cuda_has_floats(precision: Precision) -> None:
    check_device(Device.CUDA, precision, ONNX)


@pytest.mark.parametrize("precision", [Precision.INT8, Precision.INT8_FAST])
def test_int8_is_refused_for_cuda(precision: Precision) -> None:
    with pytest.raises(SetupError, match=f"{precision} is for the CPU.*fp32, fp16, bf16"):
        check_device(Device.CUDA, precision, ONNX)


@pytest.mark.parametrize("runtime", [Runtime.OPENVINO, Runtime.AUTO])
def test_other_runtimes_are_refused_for_cuda(runtime: Runtime) -> None:
    with pytest.raises(SetupError, match=f"--runtime {runtime} is for the CPU"):
        check_device(Device.CUDA, Precision.FP16, runtime)


def test_float16_is_refused_for_the_cpu_with_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(typer.Exit):
        export(str(CHECKPOINTS / "example-gpt"), repository=tmp_path, precision=Precision.FP16)
    assert capsys.readouterr().err == (
        "error: --precision fp16 is for --device cuda: the CPU has few float16 kernels\n"
    )
    assert list(tmp_path.iterdir()) == []


def test_what_the_cpu_had_before_stays() -> None:
    for precision in (Precision.FP32, Precision.INT8, Precision.INT8_FAST, Precision.BF16):
        check_device(Device.CPU, precision, Runtime.OPENVINO)


FAULTS = faults_encoders.FAULTS
ENCODERS = tuple(dict.fromkeys(name for name, _ in FAULTS))
HEADS = [
    (name, config)
    for name in ENCODERS
    for config, fields in twin_of(name).configs.items()
    if name not in generators() or "architectures" in fields
]


@pytest.mark.full
@pytest.mark.parametrize(("name", "config"), HEADS)
def test_every_head_passes_the_gate_in_both_precisions(
    name: str, config: str, twins: Twins, bundles: Bundles, tmp_path: Path
) -> None:
    twin, bundle = twins(name, config), bundles(name, config)
    assert verify(twin.graphs(), bundle).worst_difference < TOLERANCE
    lowered(bundle, twin, tmp_path)  # raises if int8 is too far off, or a row depends on others


LENGTH = 12


@pytest.mark.parametrize("chunks", [(12,), (5, 7), (1, 4, 4, 3), (11, 1), (1,) * 12])
def test_prompt_in_chunks_gives_the_scores_of_the_whole(
    chunks: tuple[int, ...], twins: Twins, bundles: Bundles
) -> None:
    twin, bundle = twins("gpt2", "odd"), bundles("gpt2", "odd")
    tokens = np.random.default_rng(0).integers(0, 64, (1, LENGTH))
    with torch.no_grad():
        want = twin.reference(torch.from_numpy(tokens)).logits[0]  # (T, V)
    session = onnxruntime.InferenceSession(str(bundle_path(bundle, "step")))
    run = onnx_run({"step": session})
    admitted = Admitted.make(run, bundle.manifest, Probe(64, 64), 1, 1)
    call = StepLoop(run, bundle.manifest, admitted, room=LENGTH + 4)  # arenas are rarely full
    end = 0
    for chunk in chunks:
        start, end = end, end + chunk
        logits = call(tokens[:, start:end], np.array([end], np.int32), chunk)
        assert difference(want[end - 1], torch.from_numpy(logits[0])) < TOLERANCE, end


NAMES = ["input_ids", "attention_mask"]


@pytest.mark.parametrize("names", [None, [*NAMES, "token_type_ids"], NAMES])
def test_segments_of_a_pair_are_those_of_transformers(
    names: list[str] | None, tmp_path: Path
) -> None:
    write_folder("bert-uncased", tmp_path)
    path = tmp_path / "tokenizer_config.json"
    settings = json.loads(path.read_text())
    path.write_text(json.dumps(settings | ({} if names is None else {"model_input_names": names})))
    reference = AutoTokenizer.from_pretrained(str(tmp_path), trust_remote_code=False)
    wanted = reference("the dog", "a cat")
    _, files = fast_tokenizer(Checkpoint(tmp_path, "pair", {"model_type": "bert"}))
    found = Tokenizer.from_str(files["tokenizer.json"].decode()).encode("the dog", "a cat")
    assert found.ids == wanted["input_ids"]
    assert found.type_ids == wanted.get("token_type_ids", [0] * len(found.ids))
    assert any(found.type_ids) == (names != NAMES)
