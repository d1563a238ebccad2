"""The processor of a machine in words."""

from __future__ import annotations

from pathlib import Path

import pytest

from inference import processor


@pytest.mark.parametrize(
    ("flags", "kind"),
    [
        ("fma avx2 avx512f avx512_vnni amx_bf16 amx_tile amx_int8", "AMX"),
        ("fma avx2 avx512f avx_vnni avx512_vnni", "AVX-512 VNNI"),
        ("fma avx2 avx_vnni", "AVX-VNNI"),
        ("fma avx2 avx512f", "AVX-512"),
        ("fma avx2", "AVX2"),
    ],
)
def test_kind_is_the_best_of_the_instructions(
    flags: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processor, "_CPUINFO", tmp_path / "cpuinfo")
    lines = f"model name\t: AMD avx512f\nflags\t\t: fpu {flags}\n"
    (tmp_path / "cpuinfo").write_text(lines * 2)
    assert (processor.processor_name(), processor.processor_kind()) == ("AMD avx512f", kind)


def test_kind_of_other_processors_is_their_architecture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processor, "_CPUINFO", tmp_path / "missing")
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    assert processor.processor_kind() == "ARM64"
