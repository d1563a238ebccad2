"""`serving` and `inference` load torch, transformers or `export`, even indirectly."""

import subprocess
import sys

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


BACKENDS = """
import sys
import serving.backends.instance, inference.stateless.graph_sessions
import inference.engine.engine, inference.engine.codec, inference.bundle.manifest
sys.exit(" ".join({"prometheus_client", "psutil", "httpx", "ssl"} & set(sys.modules)) or 0)
"""


def test_model_processes_load_no_network_libraries() -> None:
    """They start for each model, and `ssl` may not match the libpython that Triton's stub links."""
    run = subprocess.run(
        [sys.executable, "-c", BACKENDS], capture_output=True, text=True, timeout=60, check=False
    )
    assert run.returncode == 0, run.stderr
