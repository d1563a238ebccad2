"""Outside `inference/tasks` no file of serving names a task or an architecture.

Dialects of other APIs are the exception: they translate a foreign route to one task. So is what
one of them needs for documents, whose formats have words such as `tag` and `embed` of their own.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from triptych.tasks import TASKS

ROOT = Path(__file__).parents[2]
DIALECTS = ROOT / "serving" / "gateway" / "dialects"
DOCUMENTS = ROOT / "serving" / "documents"
FOREIGN = {*DIALECTS.rglob("*.py"), *DOCUMENTS.rglob("*.py")} - {DIALECTS / "native.py"}
SOURCES = [
    path
    for package in ("inference", "serving")
    for path in sorted((ROOT / package).rglob("*.py"))
    if ROOT / "inference" / "tasks" not in path.parents and path not in FOREIGN
]
TASK_NAMES = {name for task in TASKS.values() for name in (task.name, task.method)}
ORDINARY = {"score"}
"""Tasks whose names are ordinary names of variables as well; strings and imports still count."""
MESSAGES = {kind.__name__ for task in TASKS.values() for kind in (task.request, task.response)}


def architectures() -> set[str]:
    """`model_type`s and modules of the export registry, read from its text."""
    tree = ast.parse((ROOT / "export" / "registry.py").read_text(encoding="utf-8"))
    (table,) = (
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict)
        if "ARCHITECTURES" in {name.id for name in node.targets if isinstance(name, ast.Name)}
    )
    keys = {key.value for key in table.keys if isinstance(key, ast.Constant)}
    return {name for key in keys for name in (key, key.replace("-", "_"))}


def named(tree: ast.AST) -> Iterator[str]:
    """String literals, identifiers, and the last parts of imported modules."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif isinstance(node, ast.ImportFrom):
            if node.module and node.module.startswith(("inference.tasks.", "triptych.tasks.")):
                yield node.module.rpartition(".")[2]
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.Name) and node.id not in ORDINARY:
            yield node.id


def test_the_check_finds_names() -> None:
    source = "from triptych.tasks.caption import CaptionRequest\nif task == 'zero-shot': gpt2()"
    found = set(named(ast.parse(source)))
    assert {"caption", "CaptionRequest", "zero-shot", "gpt2"} <= found
    assert {"clip", "vision-encoder-decoder", "vision_encoder_decoder"} <= architectures()
    assert len(SOURCES) > 50


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_task_and_no_architecture_is_named(path: Path) -> None:
    found = set(named(ast.parse(path.read_text(encoding="utf-8"))))
    assert not found & (TASK_NAMES | MESSAGES | architectures())
