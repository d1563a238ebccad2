"""Our Triton backends on a card, as Triton calls them, over the stub."""

from __future__ import annotations

import json
import shutil
import sys
import types
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from export.parity.graph_runs import bundle_path
from export.precision import Precision
from inference.bundle.manifest import MANIFEST, Bundle
from inference.errors import BundleError, DeviceError
from tests.cuda_stub.conftest import OnDevice
from tests.cuda_stub.stub_library import Stub


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The autoregressive backend's model class, without Triton around it."""
    utilities = types.ModuleType("triton_python_backend_utils")
    for name in ("MetricFamily", "Logger", "InferenceResponse", "Tensor", "TritonError"):
        setattr(utilities, name, MagicMock())
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", utilities)
    for name in [name for name in sys.modules if name.startswith("serving.backends")]:
        monkeypatch.delitem(sys.modules, name)
    from serving.backends.autoregressive.model import TritonPythonModel

    return TritonPythonModel


def arguments(bundle: Bundle, folder: Path, card: int = 0, **parameters: str) -> dict[str, str]:
    """What Triton gives an instance on a card."""
    folder = folder / bundle.manifest.name
    version = folder / "1"
    shutil.copytree(bundle_path(bundle, "step").parent, version, dirs_exist_ok=True)
    (version / MANIFEST).write_text(bundle.manifest.model_dump_json(), encoding="utf-8")
    (version / bundle.manifest.report).write_text("{}", encoding="utf-8")
    values = {name: {"string_value": value} for name, value in parameters.items()}
    return {
        "model_repository": str(folder),
        "model_version": "1",
        "model_name": bundle.manifest.name,
        "model_instance_name": f"{bundle.manifest.name}_0",
        "model_instance_kind": "GPU",
        "model_instance_device_id": str(card),
        "model_config": json.dumps({"parameters": values}),
    }


def test_generator_is_warmed_up_on_the_card(
    stub: Stub, on_device: OnDevice, backend: Any, tmp_path: Path
) -> None:
    before = stub.read()
    model = backend()
    model.initialize(arguments(on_device("gpt2", Precision.FP16), tmp_path))
    model.finalize()
    assert (stub.read() - before).launches > 0


def test_rows_that_do_not_fit_are_refused_at_load(
    stub: Stub, on_device: OnDevice, backend: Any, tmp_path: Path
) -> None:
    given = arguments(
        on_device("gpt2", Precision.FP16), tmp_path, max_rows="4096", prefix_memory="0"
    )
    with stub.free_bytes(3 << 20), pytest.raises(BundleError, match=r"max_rows \d+ would fit"):
        backend().initialize(given)


def test_card_that_is_not_there_is_refused_at_load(
    stub: Stub, on_device: OnDevice, backend: Any, tmp_path: Path
) -> None:
    with pytest.raises(DeviceError, match="there is no card 5"):
        backend().initialize(arguments(on_device("gpt2", Precision.FP16), tmp_path, card=5))
