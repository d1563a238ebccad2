"""`python -m codegen`: write every committed file that follows from the tasks (`make proto`)."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path

from codegen.formatting import formatted
from codegen.lock import LockError, check_published, lock_text, read_lock, updated
from codegen.methods import methods_text
from codegen.proto import NAME, compile_proto, proto_text
from codegen.schema import proto_messages, proto_methods
from codegen.summaries import summaries_text
from triptych import triptych_pb2
from triptych.task import Task
from triptych.tasks import TASKS

CLIENTS = Path(__file__).resolve().parents[1]
METHODS = "triptych/generated/methods.py"
SUMMARIES = "triptych/generated/summaries.py"
LOCK = CLIENTS / "triptych" / "proto.lock.json"


def generate(output: Path, tasks: Iterable[Task] = TASKS.values()) -> None:
    """Write the generated files below `output`, laid out as below `clients`.

    Raises:
        LockError: The tasks would break the compatibility of the protocol; nothing is written.
    """
    tasks = list(tasks)
    lock = read_lock(LOCK)
    check_published(lock, triptych_pb2.DESCRIPTOR)
    messages = proto_messages(tasks)
    lock = updated(lock, messages)
    files = {
        NAME: proto_text(messages, proto_methods(tasks), lock),
        f"triptych/{LOCK.name}": lock_text(lock),
        METHODS: formatted(methods_text(tasks), METHODS),
        SUMMARIES: formatted(summaries_text(tasks), SUMMARIES),
    }
    for name, text in files.items():
        path = output / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    compile_proto(output, output)


def main() -> None:
    """Command line of the generators."""
    parser = argparse.ArgumentParser(prog="codegen", description=__doc__)
    parser.add_argument("--output", type=Path, default=CLIENTS, help="instead of clients/")
    try:
        generate(parser.parse_args().output)
    except LockError as error:
        parser.exit(1, f"codegen: {error}\n")


if __name__ == "__main__":
    main()
