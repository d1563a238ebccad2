"""A bundle for a device that the machine lacks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from serving.bundle import MANIFEST, Bundle
from serving.bundle_reader import open_bundle
from serving.errors import SetupError
from serving.triton import TritonServer, TritonSettings, devices
from tests.serving.triton.tiny import publish_times


def _for_cuda(repository: Path) -> Bundle:
    folder = publish_times(repository, "twice", 2)
    fields = json.loads((folder / MANIFEST).read_text())
    fields |= {"device": "cuda", "precision": "fp16"}
    (folder / MANIFEST).write_text(json.dumps(fields))
    return open_bundle(folder)


def test_bundle_for_cuda_is_refused_without_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = _for_cuda(tmp_path)
    monkeypatch.setattr(devices, "GPU", tmp_path / "nvidiactl")
    with pytest.raises(SetupError) as refused:
        devices.require_device(bundle)
    assert refused.value.message == (
        f"twice version 1 is for CUDA (fp16), and this machine has no GPU ({tmp_path}/nvidiactl "
        "is missing): serve it where there is one, or export it with --device cpu"
    )
    (tmp_path / "nvidiactl").touch()
    devices.require_device(bundle)


def test_bundle_for_the_cpu_needs_no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "GPU", tmp_path / "nvidiactl")
    devices.require_device(open_bundle(publish_times(tmp_path, "twice", 2)))


@pytest.mark.integration
@pytest.mark.skipif(devices.GPU.exists(), reason="this machine has a GPU")
def test_server_refuses_it_and_serves_the_others(tmp_path: Path) -> None:
    _for_cuda(tmp_path)
    publish_times(tmp_path, "thrice", 3)
    server = TritonServer(TritonSettings(tmp_path))
    try:
        server.start(strict=False)
        assert server.models == ("thrice",)
    finally:
        server.stop()
