"""The line that says which tests were skipped."""

from pathlib import Path

import pytest

from tests.skipped import VARIABLE, describe_processor, describe_skips

pytest_plugins = ["pytester"]
ROOT = Path(__file__).parents[1]


def test_reasons_of_several_runs_are_counted(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "skipped"
    monkeypatch.setenv(VARIABLE, str(file))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    pytester.makeconftest("from tests.conftest import pytest_sessionfinish")
    pytester.makepyfile(
        """
        import pytest
        @pytest.mark.parametrize("case", range(3))
        def test_page(case): pytest.skip("no Chromium is installed")
        def test_other(): pytest.skip("no docker")
        def test_runs(): pass
        """
    )
    for _ in range(2):
        pytester.runpytest_subprocess("-p", "no:cacheprovider")
    line = describe_skips(file)
    assert line.startswith("8 tests were SKIPPED: 6 × no Chromium is installed; 2 × no docker. ")
    assert "\n" not in line


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        (
            "AVX-512 VNNI",
            "ran on AVX-512 VNNI; not covered: AMX, AVX-VNNI, AVX-512; AVX2 by make test-avx2",
        ),
        ("AVX2", "ran on AVX2; not covered: AMX, AVX-512 VNNI, AVX-VNNI, AVX-512"),
        (
            "ARM64",
            "ran on ARM64; not covered: AMX, AVX-512 VNNI, AVX-VNNI, AVX-512, AVX2",
        ),
    ],
)
def test_kinds_of_processors_that_were_not_covered(
    kind: str, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.skipped.processor_kind", lambda: kind)
    assert describe_processor() == line


def test_nothing_skipped(tmp_path: Path) -> None:
    assert describe_skips(tmp_path / "missing").startswith("no test was skipped")
