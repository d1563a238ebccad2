"""all-MiniLM-L6-v2, served in every precision, beside `sentence_transformers` over the same files.

The printed table is the one of docs/checkpoints.md.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.e2e.conftest import Stack
from tests.real_weights.conftest import DOCS, VARIANTS, Variant, Vectors, is_supported
from triptych import Client, GrpcClient
from triptych.cli import run

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

pytestmark = [pytest.mark.full, pytest.mark.integration]

WEIGHTS = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
"""SHA-256 of `model.safetensors`, as sentence-transformers published it."""
ANSWERS = {
    "How do I get a refund?": "Items may be returned within thirty days, and you are paid back.",
    "What is the capital of France?": "Paris has been the seat of the French state for centuries.",
    "Why is the sky blue?": "Air scatters short wavelengths of sunlight more than long ones.",
    "my laptop does not turn on": "If the computer shows no sign of power, charge it first.",
    "recipe for bread": "Mix flour, water, yeast and salt, let the dough rise, then bake it.",
    "Who painted the Mona Lisa?": "Leonardo da Vinci made the portrait around 1503.",
    "symptoms of the flu": "Fever, a sore throat and aching muscles are signs of influenza.",
    "how to learn a language": "Speak with others every day and repeat new words after a week.",
    "train times to Berlin": "The express to the German capital leaves at a quarter past nine.",
    "When did the war end?": "The armistice was signed in November 1918.",
    "cheap places to sleep": "The hostel by the station has beds for twenty euros a night.",
    "How large is the sun?": "Our star has more than a hundred times the diameter of the Earth.",
}  # fmt: skip
"""A question, and the sentence that a reader would choose for it: they share few words."""
ODD = [
    "a",
    "naïve café, Genève!",
    "東京タワーは赤い。",
    "🙂 emoji 👩‍🚀",
    "un-be-liev-able... isn't it?",
    "x" * 300,
    "The " * 252 + "end.",
]
"""The last one has as many tokens as the model takes, 256."""
QUERIES, DOCUMENTS = list(ANSWERS), list(ANSWERS.values())
TEXTS = [*QUERIES, *DOCUMENTS, *ODD]


@pytest.fixture(scope="session")
def expected(reference: SentenceTransformer) -> Vectors:
    """(TEXTS, 384), each text by itself: no padding."""
    return np.stack([reference.encode(text) for text in TEXTS])


@pytest.fixture(scope="session")
def client(stack: Stack) -> Iterator[Client]:
    with Client(stack.url) as found:
        yield found


@pytest.fixture(params=VARIANTS, ids=lambda variant: variant.name)
def variant(request: pytest.FixtureRequest) -> Variant:
    found: Variant = request.param
    if not is_supported(found):
        pytest.skip(f"this processor has no {found.precision}")
    return found


def embed(client: Client | GrpcClient, texts: Sequence[str], variant: Variant) -> Vectors:
    """In requests of a few texts of similar length, as they come."""
    found: list[list[float] | None] = []
    for start in range(0, len(texts), 8):
        data = client.embed(texts[start : start + 8], model=variant.name).data
        assert [item.error for item in data] == [None] * len(data)
        found += [item.embedding for item in data]
    return np.array(found, np.float32)


def order(vectors: Vectors) -> np.ndarray:
    """(QUERIES, DOCUMENTS): the documents of each query, best first."""
    queries, documents = vectors[: len(QUERIES)], vectors[len(QUERIES) :][: len(DOCUMENTS)]
    return np.argsort(-(queries @ documents.T), axis=1, kind="stable")


def test_weights_are_the_published_ones(checkpoint: Path) -> None:
    digest = hashlib.sha256((checkpoint / "model.safetensors").read_bytes()).hexdigest()
    assert digest == WEIGHTS


def test_int8_of_openvino_needs_samples(
    checkpoint: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Scales that are taken from random tokens cost this model too much: the gate refuses them."""
    where = ["--repository", str(tmp_path), "--runtime", "openvino", "--precision", "int8"]
    assert run(["export", str(checkpoint), *where]) != 0
    assert "take them from samples of your own" in capfd.readouterr().err
    assert not list(tmp_path.rglob("bundle.json"))


def test_vectors_are_those_of_sentence_transformers(
    client: Client, variant: Variant, expected: Vectors
) -> None:
    found = embed(client, TEXTS, variant)
    assert found.shape == (len(TEXTS), 384)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-6)
    difference = float(np.abs(found - expected).max())
    cosines = (found.astype(np.float64) * expected).sum(axis=1)
    same = int((order(found) == order(expected)).all(axis=1).sum())
    moved = float(np.abs(_scores(found) - _scores(expected)).max())
    print(
        f"\n| `{variant.precision}` | `{variant.runtime}` | {difference:.1e} | {cosines.min():.6f} "
        f"| {cosines.mean():.6f} | {moved:.1e} | {same} of {len(QUERIES)} |"
    )
    assert difference <= variant.difference
    assert cosines.min() >= variant.cosine


def _scores(vectors: Vectors) -> Vectors:
    queries, documents = vectors[: len(QUERIES)], vectors[len(QUERIES) :][: len(DOCUMENTS)]
    return queries @ documents.T


def test_retrieval_finds_what_the_reference_finds(
    client: Client, variant: Variant, expected: Vectors
) -> None:
    """The best document of each query in every precision; in float32 the order of all."""
    assert (order(expected)[:, 0] == np.arange(len(QUERIES))).all()
    found = order(embed(client, TEXTS, variant))
    if variant.precision == "fp32":
        np.testing.assert_array_equal(found, order(expected))
    np.testing.assert_array_equal(found[:, 0], order(expected)[:, 0])


@pytest.mark.parametrize("variant", VARIANTS[:1], ids=lambda variant: variant.name)
def test_grpc_and_openais_route_return_the_same_numbers(
    stack: Stack, client: Client, variant: Variant
) -> None:
    texts = DOCUMENTS[:8]
    with GrpcClient(stack.grpc_address) as grpc:
        np.testing.assert_array_equal(embed(grpc, texts, variant), embed(client, texts, variant))


@pytest.mark.parametrize("variant", [VARIANTS[0], VARIANTS[4]], ids=lambda variant: variant.name)
def test_long_texts_are_cut_where_sentence_transformers_cuts_them(
    client: Client, variant: Variant, reference: SentenceTransformer
) -> None:
    pages = [(DOCS / name).read_text(encoding="utf-8") for name in ("engine.md", "export.md")]
    for text in (*pages, pages[0] * 40):
        (refused,) = client.embed(["a", text], model=variant.name).data[1:]
        assert refused.error is not None
        assert refused.error.type == "too_long"
        (found,) = client.embed(text, model=variant.name, truncate=True).data
        assert found.truncated_characters is not None
        np.testing.assert_allclose(found.embedding, reference.encode(text), atol=1e-6)
        kept = text[: -found.truncated_characters]
        (again,) = client.embed(kept, model=variant.name).data
        np.testing.assert_allclose(again.embedding, found.embedding, atol=1e-6)
