"""Programs that tests start end by signals, whatever the shell of the run ignores."""

import os
import subprocess
import sys

CHILD = "import signal; print([n for n in (1, 2, 15) if signal.getsignal(n) == signal.SIG_IGN])"
RUN = f'trap "" HUP INT TERM; exec "{sys.executable}" -m pytest -q -p no:cacheprovider "$0"'


def test_programs_ignore_no_signal() -> None:
    assert subprocess.check_output([sys.executable, "-c", CHILD], text=True) == "[]\n"


def test_programs_ignore_no_signal_that_the_shell_of_the_run_ignores() -> None:
    test = f"{__file__}::{test_programs_ignore_no_signal.__name__}"
    outer = {name: value for name, value in os.environ.items() if "PYTEST" not in name}
    run = subprocess.run(["sh", "-c", RUN, test], env=outer, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout
