"""An architecture is one model file and one line of the registry, its tests included."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import export.models.gpt2_lm as original

PLUGIN = """
from export.registry import ARCHITECTURES

ARCHITECTURES["throwaway"] = "throwaway_model"
"""
TESTS = Path(__file__).parent


@pytest.mark.slow
def test_model_file_and_registry_line_are_all_that_its_tests_need(tmp_path: Path) -> None:
    """A decoder under a new `model_type` passes every test that runs on all of the registry."""
    source = Path(original.__file__).read_text().replace('name="gpt2"', 'name="throwaway"')
    (tmp_path / "throwaway_model.py").write_text(source)
    (tmp_path / "throwaway_line.py").write_text(PLUGIN)
    command = [
        *(sys.executable, "-m", "pytest", "-q", "-p", "throwaway_line", "-k", "throwaway"),
        *("-p", "no:cacheprovider", "-p", "no:randomly", str(TESTS)),
        f"--ignore={TESTS / 'examples'}",
        f"--basetemp={tmp_path / 'temporary'}",
        "-rA",
    ]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    passed = [line for line in done.stdout.splitlines() if line.startswith("PASSED")]
    files = {line.split("::")[0].rpartition("/")[2] for line in passed}
    assert files >= {
        "test_twins.py",
        "test_planted_faults.py",
        "test_generate_parity.py",
        "test_prompt_reading.py",
        "test_torch_runner.py",
        "test_to_onnx.py",
        "test_quantize.py",
        "test_quantize_cache.py",
        "test_triton_config.py",
        "test_preprocessing.py",
    }
