"""`python -m codegen`: write every committed file that follows from declarations (`make proto`)."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

from codegen.formatting import formatted
from codegen.lock import LockError, check_published, lock_text, read_lock, updated
from codegen.methods import methods_text
from codegen.pages import with_tables
from codegen.proto import PROTO, compile_proto, proto_text
from codegen.schema import proto_messages, proto_methods
from codegen.settings import with_settings
from codegen.summaries import summaries_text
from triptych import triptych_pb2
from triptych.task import Task
from triptych.tasks import TASKS

ROOT = Path(__file__).resolve().parents[2]
LOCK = "clients/triptych/proto.lock.json"
METHODS = "clients/triptych/generated/methods.py"
SUMMARIES = "clients/triptych/generated/summaries.py"


def generate(output: Path, tasks: Mapping[str, Task] = TASKS) -> None:
    """Write the generated files below `output`, laid out as in the repository.

    Raises:
        LockError: The tasks would break the compatibility of the protocol; nothing is written.
    """
    declared = list(tasks.values())
    lock = read_lock(ROOT / LOCK)
    check_published(lock, triptych_pb2.DESCRIPTOR)
    messages = proto_messages(declared)
    lock = updated(lock, messages)
    files = {
        f"clients/{PROTO}": proto_text(messages, proto_methods(declared), lock),
        LOCK: lock_text(lock),
        METHODS: formatted(methods_text(declared), METHODS),
        SUMMARIES: formatted(summaries_text(declared), SUMMARIES),
    }
    for page in sorted((ROOT / "docs").rglob("*.md")):
        text = page.read_text(encoding="utf-8")
        files[str(page.relative_to(ROOT))] = with_settings(with_tables(text, tasks))
    for name, text in files.items():
        path = output / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    compile_proto(output / "clients", output / "clients")


def main() -> None:
    """Command line of the generators."""
    parser = argparse.ArgumentParser(prog="codegen", description=__doc__)
    parser.add_argument("--output", type=Path, default=ROOT, help="instead of here")
    try:
        generate(parser.parse_args().output)
    except LockError as error:
        parser.exit(1, f"codegen: {error}\n")


if __name__ == "__main__":
    main()
