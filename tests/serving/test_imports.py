"""What `serving` and `inference` load and name.

Dialects of other APIs are the exception: they translate a foreign route to one task. So is what
one of them needs for documents, whose formats have words such as `tag` and `embed` of their own.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.programs import run_program
from triptych.tasks import TASKS

PROGRAM = """
import importlib, pkgutil, sys
import inference, serving

for package in (inference, serving):
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if module.name.startswith("serving.backends.") and module.name.endswith("model"):
            continue  # needs the module that Triton's Python stub brings
        importlib.import_module(module.name)
        print(module.name)
heavy = {"torch", "transformers", "export"} & {name.split(".")[0] for name in sys.modules}
sys.exit(f"loaded: {sorted(heavy)}" if heavy else 0)
"""


def test_serving_loads_neither_torch_nor_transformers_nor_export() -> None:
    modules = set(run_program(sys.executable, "-c", PROGRAM).split())
    assert {
        "serving.gateway.server.run_server",
        "inference.tasks.zero_shot",
        "inference.processing.tokenizer_kinds",
    } <= modules


MODEL_PROCESS = (
    "serving.backends.instance, inference.stateless.graph_sessions, inference.engine.engine, "
    "inference.engine.codec, inference.bundle.manifest"
)

ENCODER_PROCESS = "inference.load_check, inference.stateless.graph_sessions"
GENERATOR_PROCESS = "inference.engine.runner_factory, serving.settings.capacity_settings"


@pytest.mark.parametrize(
    ("modules", "absent"),
    [
        # `ssl` may not match the libpython that Triton's stub links.
        (MODEL_PROCESS, "prometheus_client psutil httpx ssl"),
        # What a process imports is most of the time in which a model returns.
        (ENCODER_PROCESS, "onnx pydantic google"),
        (GENERATOR_PROCESS, "pydantic_settings inference.engine.runners.cuda.device"),
        ("serving.commands.serve", "numpy httpx grpc triptych.tasks"),
        ("serving.commands.triton", "httpx onnxruntime fastapi"),
        ("serving.commands.gateway", "inference.tasks triptych.tasks grpc fastapi"),
        ("serving.commands.versions", "numpy httpx grpc triptych.tasks"),
        ("serving.probe", "httpx pydantic asyncio"),
    ],
    ids=["model process", "encoder", "generator", "serve", "triton", "gateway", "reload", "probe"],
)
def test_processes_that_start_often_load_no_more_than_they_need(modules: str, absent: str) -> None:
    found = f"set({absent.split()}) & set(sys.modules)"
    program = f"import sys, {modules}; sys.exit(' '.join({found}) or 0)"
    run_program(sys.executable, "-c", program)


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
ORDINARY = {"score", "answer"}
"""Tasks whose names are ordinary names of variables as well; strings and imports still count."""
MESSAGES = {kind.__name__ for task in TASKS.values() for kind in (task.request, task.response)}


def architectures() -> set[str]:
    """`model_type`s of the export registry, read from its text, but `align`, also a graph."""
    tree = ast.parse((ROOT / "export" / "registry.py").read_text(encoding="utf-8"))
    (table,) = (
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict)
        if "ARCHITECTURES" in {name.id for name in node.targets if isinstance(name, ast.Name)}
    )
    keys = {key.value for key in table.keys if isinstance(key, ast.Constant)}
    return {name for key in keys for name in (key, key.replace("-", "_"))} - {"align"}


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
