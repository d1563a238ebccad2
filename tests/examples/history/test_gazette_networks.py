"""What `training/gazette.py` trains is what `export/models` reads: the same logits, the same
names.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

from benchmarks.local_model import torch_graphs
from examples.en_fr.train import batches
from examples.history.gazette.networks import CONFIGS, network, parameters
from examples.history.gazette.train import FOLDERS, WORDS
from export.training.bahdanau import Batch, save, write_settings
from inference.bundle.manifest import Role
from tests.export.step_calls import teacher_forced


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(WORDS))


@pytest.fixture(scope="module")
def batch(tokenizer: Tokenizer) -> Batch:
    whole = next(batches(tokenizer, seed=3))
    return Batch(whole.source[:4], whole.lengths[:4], whole.target[:4])


def test_every_system_has_a_folder_and_about_the_same_number_of_parameters() -> None:
    assert set(FOLDERS) == set(CONFIGS)
    sizes = {"vocab_size": 1659, "max_positions": 64}
    counts = [parameters(network({**config, **sizes})) for config in CONFIGS.values()]
    assert max(counts) < 1.06 * min(counts)
    assert max(counts) * 2 < 1_000_000  # bytes, in half precision


@pytest.mark.parametrize("system", CONFIGS)
def test_saved_network_is_read_with_the_same_logits(
    system: str, tmp_path: Path, tokenizer: Tokenizer, batch: Batch
) -> None:
    torch.manual_seed(0)
    write_settings(tmp_path, tokenizer, CONFIGS[system])
    config = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    model = network(config).half().float().eval()
    save(model, tmp_path)
    target = batch.target.clamp(min=0)
    shifted = torch.nn.functional.pad(target[:, :-1], (1, 0), value=2)
    with torch.no_grad():
        wanted = model(Batch(batch.source, batch.lengths, batch.target), 0.0)
        given, _ = teacher_forced(
            torch_graphs(tmp_path),
            {Role.SOURCE_TOKENS: batch.source, Role.SOURCE: batch.lengths},
            shifted,
        )
    seen = batch.target >= 0
    assert (wanted - given)[seen].abs().max() < 1e-4 * wanted.abs().max()
