"""What a run of the tests itself does: shared folders, skips, units of work, signals."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.conftest import LONGEST, unit_of
from tests.shared_folders import made_once
from tests.skipped import VARIABLE, describe_processor, describe_skips


def test_one_of_several_makes_the_folder_and_the_others_wait(tmp_path: Path) -> None:
    makers: list[int] = []

    def make(folder: Path) -> None:
        makers.append(threading.get_ident())
        time.sleep(0.05)
        (folder / "file").write_text("whole")

    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda _: made_once(tmp_path / "shared", make), range(4)))
    assert len(makers) == 1
    assert {folder / "file" for folder in made} == {tmp_path / "shared" / "file"}
    assert (tmp_path / "shared" / "file").read_text() == "whole"


def test_failure_leaves_nothing_behind(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        (folder / "half").write_text("half")
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        made_once(tmp_path / "shared", fail)
    assert not (tmp_path / "shared").exists()
    made_once(tmp_path / "shared", lambda folder: (folder / "whole").write_text("whole"))
    assert [path.name for path in (tmp_path / "shared").iterdir()] == ["whole"]


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


def test_files_of_a_stack_go_to_one_worker(request: pytest.FixtureRequest) -> None:
    names = (
        "test_generation",
        "test_answers",
        "page/test_panels",
        "page/test_use",
        "test_versions",
    )
    units = [unit_of(f"tests/e2e/{name}.py::test_it[a::b]", request.config) for name in names]
    assert units == ["stack", "stack", "page", "page", "tests/e2e/test_versions.py"]


def test_units_that_are_first_exist(request: pytest.FixtureRequest) -> None:
    root = request.config.rootpath
    tests = root.glob("tests/**/test_*.py")
    assert set(LONGEST) <= {unit_of(str(path.relative_to(root)), request.config) for path in tests}


CHILD = "import signal; print([n for n in (1, 2, 15) if signal.getsignal(n) == signal.SIG_IGN])"
RUN = f'trap "" HUP INT TERM; exec "{sys.executable}" -m pytest -q -p no:cacheprovider "$0"'


def test_programs_ignore_no_signal() -> None:
    assert subprocess.check_output([sys.executable, "-c", CHILD], text=True) == "[]\n"


def test_programs_ignore_no_signal_that_the_shell_of_the_run_ignores() -> None:
    test = f"{__file__}::{test_programs_ignore_no_signal.__name__}"
    outer = {name: value for name, value in os.environ.items() if "PYTEST" not in name}
    run = subprocess.run(["sh", "-c", RUN, test], env=outer, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout
