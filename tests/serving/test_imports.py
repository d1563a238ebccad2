"""`serving` and `inference` load torch, transformers or `export`, even indirectly."""

import subprocess
import sys

import pytest

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
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=False
    )
    assert run.returncode == 0, run.stderr
    modules = set(run.stdout.split())
    assert {
        "serving.gateway.server.run_server",
        "inference.tasks.zero_shot",
        "inference.processing.text",
    } <= modules


MODEL_PROCESS = (
    "serving.backends.instance, inference.stateless.graph_sessions, inference.engine.engine, "
    "inference.engine.codec, inference.bundle.manifest"
)


@pytest.mark.parametrize(
    ("modules", "absent"),
    [
        # `ssl` may not match the libpython that Triton's stub links.
        (MODEL_PROCESS, "prometheus_client psutil httpx ssl"),
        ("serving.commands.serve", "numpy httpx grpc triptych.tasks"),
        ("serving.commands.triton", "httpx onnxruntime fastapi"),
        ("serving.commands.versions", "numpy httpx grpc triptych.tasks"),
        ("serving.probe", "httpx pydantic asyncio"),
    ],
    ids=["model process", "serve", "triton", "reload", "probe"],
)
def test_processes_that_start_often_load_no_more_than_they_need(modules: str, absent: str) -> None:
    found = f"set({absent.split()}) & set(sys.modules)"
    program = f"import sys, {modules}; sys.exit(' '.join({found}) or 0)"
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert run.returncode == 0, run.stderr
