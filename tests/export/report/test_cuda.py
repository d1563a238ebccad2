"""`triptych verify` on bundles for CUDA, which it verifies on the CPU."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from export.parity.graph_runs import bundle_path
from export.precision import Precision
from export.report.checks import Verification
from export.report.findings import Check, Status
from inference.bundle.manifest import MANIFEST, Bundle
from tests.export.conftest import Bundles, Twins
from tests.export.report.conftest import write_report
from tests.export.targets.cuda.bundles import on_cuda
from tests.export.twin import EXPORTED


def _published(
    name: str, precision: Precision, twins: Twins, bundles: Bundles, folder: Path
) -> Bundle:
    staged, _ = on_cuda(name, precision, twins, bundles, folder)
    for model in set(staged.manifest.parts.values()):
        shutil.copytree(staged.folder.parent / model, folder / "repository" / model / "1")
    manifest = staged.manifest.model_copy(update={"tokenizer": None})
    bundle = Bundle(folder / "repository" / manifest.name / "1", manifest)
    (bundle.folder / MANIFEST).write_text(bundle.manifest.model_dump_json())
    write_report(bundle)
    return bundle


def _checks(name: str, bundle: Bundle, twins: Twins) -> dict[str, Check]:
    checks = Verification(bundle, twins(name, EXPORTED).checkpoint).run().checks
    return {check.title: check for check in checks}


@pytest.mark.parametrize("name", ["gpt2", pytest.param("clip", marks=pytest.mark.full)])
def test_float16_bundle_is_verified_but_for_what_needs_a_card(
    name: str, twins: Twins, bundles: Bundles, tmp_path: Path
) -> None:
    checks = _checks(name, _published(name, Precision.FP16, twins, bundles, tmp_path), twins)
    assert not [check for check in checks.values() if check.status is Status.FAILED]
    assert checks["every node has a CUDA kernel"].status is Status.PASSED
    assert checks["fp16 stays close to float32"].status is Status.PASSED
    latency = checks["latency is measured"]
    assert (latency.status, latency.detail) == (
        Status.NOT_REPEATED,
        "times on the CPU say nothing about a card",
    )


def test_graph_of_the_cpu_fails_among_those_for_cuda(
    twins: Twins, bundles: Bundles, tmp_path: Path
) -> None:
    bundle = _published("gpt2", Precision.FP16, twins, bundles, tmp_path)
    shutil.copy(bundle_path(bundles("gpt2", EXPORTED), "step"), bundle_path(bundle, "step"))
    check = _checks("gpt2", bundle, twins)["every node has a CUDA kernel"]
    assert check.status is Status.FAILED
    assert "GroupQueryAttention-1 of float32" in check.detail


def test_bfloat16_bundle_is_verified_without_running_it(
    twins: Twins, bundles: Bundles, tmp_path: Path
) -> None:
    bundle = _published("gpt2", Precision.BF16, twins, bundles, tmp_path)
    checks = _checks("gpt2", bundle, twins)
    assert not [check for check in checks.values() if check.status is Status.FAILED]
    assert checks["every node has a CUDA kernel"].status is Status.PASSED
