"""TensorRT's Python package has the version of the image's libraries."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import pytest

from inference.errors import SetupError
from serving.tensorrt import bindings


def _image(monkeypatch: pytest.MonkeyPatch, **libraries: Any) -> None:
    """An image in which these libraries load; their dots are written as underscores."""

    def load(name: str) -> Any:
        if name not in found:
            raise OSError(f"{name}: cannot open shared object file")
        return found[name]

    found = {name.replace("_", "."): each for name, each in libraries.items()}
    monkeypatch.setattr(ctypes, "CDLL", load)


@pytest.mark.parametrize(
    ("number", "version"), [(101401, "10.14.1"), (110400, "11.4.0"), (101609, "10.16.9")]
)
def test_version_is_read_from_the_library(
    number: int, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = SimpleNamespace(getInferLibVersion=lambda: number)
    _image(monkeypatch, libnvinfer_so_10=library, libcudart_so_13=None)
    assert bindings.requirement("auto") == f"tensorrt-cu13-bindings=={version}.*"


def test_version_may_be_given_and_cuda_12_has_its_own_package(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _image(monkeypatch, libcudart_so_12=None)
    assert bindings.requirement("10.5.0") == "tensorrt-cu12-bindings==10.5.0"


def test_images_without_tensorrt_install_none_or_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _image(monkeypatch)
    assert bindings.requirement("none") == ""
    with pytest.raises(SetupError, match=r"this image has no TensorRT \(libnvinfer.so.11"):
        bindings.requirement("auto")
    with pytest.raises(SetupError, match="this image has no CUDA"):
        bindings.requirement("10.14.1.48")
