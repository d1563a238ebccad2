"""A bundle for a device that the machine lacks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from inference.bundle.manifest import MANIFEST, Bundle
from inference.bundle.reader import open_bundle
from inference.errors import DeviceError, SetupError
from serving.settings import triton_settings
from serving.settings.triton_settings import ServedDevice
from serving.triton.control import VersionPolicy, model_config
from serving.triton.server import TritonServer
from serving.triton.supervisor import run_triton
from tests.serving.triton.tiny import brief_server, publish_times, settings


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
    monkeypatch.setattr(triton_settings, "GPU", tmp_path / "nvidiactl")
    with pytest.raises(SetupError) as refused:
        ServedDevice().require(bundle)
    assert refused.value.message == (
        f"twice version 1 is for CUDA (fp16), and this machine has no GPU ({tmp_path}/nvidiactl "
        "is missing): serve it where there is one, or export it with --device cpu"
    )
    (tmp_path / "nvidiactl").touch()
    ServedDevice().require(bundle)


def test_bundle_for_the_cpu_needs_no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_settings, "GPU", tmp_path / "nvidiactl")
    ServedDevice().require(open_bundle(publish_times(tmp_path, "twice", 2)))


@pytest.mark.integration
@pytest.mark.skipif(triton_settings.GPU.exists(), reason="this machine has a GPU")
def test_server_refuses_it_and_serves_the_others(tmp_path: Path) -> None:
    _for_cuda(tmp_path)
    publish_times(tmp_path, "thrice", 3)
    server = TritonServer(settings(tmp_path))
    try:
        server.start(strict=False)
        assert server.models == ("thrice",)
    finally:
        server.stop(at_once=True)


@pytest.mark.integration
def test_bundle_that_does_not_load_on_the_card_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Too little memory, a missing library: Triton gives the reason as text."""
    monkeypatch.setattr(triton_settings, "GPU", tmp_path)
    bundle = _for_cuda(tmp_path)
    (bundle.folder / next(iter(bundle.manifest.graphs.values())).file).write_bytes(b"no graph")
    publish_times(tmp_path, "thrice", 3)
    with brief_server(settings(tmp_path)) as server:
        assert server.models == ("thrice",)


def test_bundle_for_cuda_is_refused_where_only_the_cpu_is_to_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triton_settings, "GPU", tmp_path)
    with pytest.raises(DeviceError, match=r"is for CUDA \(fp16\), and --device is cpu: export it"):
        ServedDevice.of("cpu").require(_for_cuda(tmp_path))
    ServedDevice.of(None).require(open_bundle(tmp_path / "twice" / "1"))


@pytest.mark.parametrize(("text", "card"), [("cuda", None), ("cuda:0", 0), ("cuda:3", 3)])
def test_flag_names_a_card(text: str, card: int | None) -> None:
    assert ServedDevice.of(text) == ServedDevice(is_required=True, card=card)


@pytest.mark.parametrize("text", ["", "gpu", "cuda:", "cuda:x", "cuda:-1", "cpu:0", "CUDA"])
def test_other_devices_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="supported are cpu, cuda and cuda:N"):
        ServedDevice.of(text)


def test_server_for_cuda_does_not_start_without_its_provider(tmp_path: Path) -> None:
    chosen = settings(tmp_path, device="cuda")
    with pytest.raises(DeviceError, match="has no CUDAExecutionProvider: install"):
        run_triton(chosen)
    assert not list(tmp_path.iterdir())


def test_card_is_that_of_instances_on_gpus(tmp_path: Path) -> None:
    text = "instance_group [{kind: KIND_%s count: 2}]"
    for name in ("GPU", "CPU"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.pbtxt").write_text(text % name)

    def gpus(name: str, card: int | None) -> list[int]:
        (group,) = model_config(tmp_path / name, VersionPolicy(1), card=card)["instance_group"]
        return list(group.get("gpus", []))

    assert gpus("GPU", 1) == [1]
    assert gpus("GPU", None) == gpus("CPU", 1) == []
