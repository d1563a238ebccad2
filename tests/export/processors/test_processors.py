"""An int8 bundle answers alike on every kind of processor.

`vnni.npz` holds what a processor with AVX-512 VNNI answered; `make test` compares with it on
whatever it runs on. `make test-avx2` runs bundles of this processor by `qemu-user` as one without
VNNI. `WRITE_OUTCOMES=1` writes `vnni.npz` again, on a processor with VNNI, where answers are to
change.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from export.pipeline.self_checks import INT8_TOLERANCE
from export.quantization.int8_parity import ROUNDING
from inference.saturation import products_saturate
from tests.export.conftest import LOWERED_ALIKE, Lowered
from tests.export.processors.outcomes import (
    AS_STORED,
    EXACT,
    FILE,
    PRODUCTS,
    Outcomes,
    changed_tokens,
    compute_outcomes,
    differences,
    read_outcomes,
)
from tests.export.twin import EXPORTED
from tests.export.twins import lowerable

RECORDED = Path(__file__).parent / "vnni.npz"
KEPT_VALUES = 8
"""Of each output in the file."""
TIE = 0.01
"""In nats a token: what a value that is rounded to another byte moves scores of twins by."""
MOST_TIES = 3
"""Of 25 hypotheses."""
EMULATOR = ("qemu-x86_64", "-cpu", "Haswell")
SATURATED = 0.01
"""Least error of products of signed weights where they saturate."""
FAMILIES = [name for name in lowerable() if name not in LOWERED_ALIKE]
WITHOUT_PRODUCTS = {"rnn-encoder"}
"""Operators over whole sequences stay float32."""


@pytest.mark.parametrize("name", FAMILIES)
def test_answers_are_those_of_another_processor(name: str, int8: Lowered) -> None:
    found = compute_outcomes(int8(name, EXPORTED), most_values=KEPT_VALUES)
    recorded = read_outcomes(RECORDED) if RECORDED.exists() else {}
    own = f"{name}: "
    wanted = {k.removeprefix(own): v for k, v in recorded.items() if k.startswith(own)}
    if ("WRITE_OUTCOMES" in os.environ or not wanted) and products_saturate():
        pytest.skip("the file is written on a processor with VNNI")
    if "WRITE_OUTCOMES" in os.environ:
        kept = {key: value for key, value in recorded.items() if not key.startswith(own)}
        added = {own + key: v for key, v in found.items() if not key.startswith(PRODUCTS)}
        np.savez_compressed(RECORDED, **kept, **added)
        return
    found = {key: value for key, value in found.items() if not key.startswith(PRODUCTS)}
    _assert_alike(wanted, found)


@pytest.fixture(scope="session")
def emulated(
    int8: Lowered, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], tuple[Outcomes, Outcomes]]:
    """Family → the outcomes of its bundle here, and of the same files without VNNI."""
    if shutil.which(EMULATOR[0]) is None:
        pytest.skip("qemu-user is not installed: no int8 bundle was run as an AVX2 processor")
    folder = tmp_path_factory.mktemp("emulated")
    for name in FAMILIES:
        shutil.copytree(int8(name, EXPORTED).folder.parent, folder / name)
    command = [*EMULATOR, sys.executable, "-m", "tests.export.processors.outcomes", str(folder)]
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)

    @cache
    def outcomes(name: str) -> tuple[Outcomes, Outcomes]:
        return compute_outcomes(int8(name, EXPORTED)), read_outcomes(folder / name / FILE)

    return outcomes


@pytest.mark.emulated
@pytest.mark.full
@pytest.mark.parametrize("name", FAMILIES)
def test_processor_without_vnni_gives_the_same_answers(
    name: str, emulated: Callable[[str], tuple[Outcomes, Outcomes]]
) -> None:
    here, there = emulated(name)
    assert float(there[EXACT]) <= ROUNDING
    assert (float(there[AS_STORED]) >= SATURATED) == (name not in WITHOUT_PRODUCTS)
    _assert_alike(here, there)


def _assert_alike(wanted: Outcomes, found: Outcomes) -> None:
    assert wanted, "the file lacks this family: write it again"
    assert differences(wanted, found, INT8_TOLERANCE, TIE) == []
    changed = changed_tokens(wanted, found)
    assert len(changed) <= MOST_TIES, changed
