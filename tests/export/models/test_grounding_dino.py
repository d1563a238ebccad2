"""What the twins' random inputs leave out: phrases, sizes of images, names of older files."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from export.checkpoint.checkpoint import Checkpoint, open_checkpoint
from export.graphs.source_model import SourceModel
from export.models.detectors.grounding_dino_layers import DELIMITERS, Phrases
from export.parity.judge import TOLERANCE
from export.parity.parity_inputs import Probe, stateless_feeds
from export.pipeline.manifest import Request, build_manifest
from export.precision import Precision
from export.registry import architecture
from export.targets.runtime_choice import check_precision
from inference.bundle.manifest import Role
from inference.errors import CheckpointError, SetupError
from tests.export.conftest import TwinPair, Twins, pair_of
from tests.export.oracle import compare, difference, normalised
from tests.export.twins import make_twin, twin_of

START, END, STOP, ASK = DELIMITERS
TEXTS = (
    (START, 7, 8, STOP, 9, 10, 11, ASK, 12, STOP, END),
    (START, 7, STOP, STOP, 8, END),  # the last phrase has no end of its own
    (5, 6, START, 7, 8),  # nothing ends the last tokens
    (STOP, 3, 3),
    (5,),
)
SMALL = [(64, ()), (500, DELIMITERS[:2])]
"""Sizes of vocabularies, and the delimiters in them."""
PLAIN = twin_of("grounding-dino").configs["plain"]


def _found(twin: TwinPair, pixels: torch.Tensor, texts: torch.Tensor, lengths: torch.Tensor) -> Any:
    module = twin.graphs().lowerings["detect"].module
    with torch.no_grad():
        return module(pixels, texts, lengths)


@pytest.mark.parametrize("size", [(64, 64), (101, 75), (33, 130)])
def test_padded_texts_over_images_of_any_size_are_those_of_transformers_alone(
    size: tuple[int, int], twins: Twins
) -> None:
    twin = twins("grounding-dino", "odd")
    random = torch.Generator().manual_seed(1)
    pixels = torch.randint(0, 256, (len(TEXTS), *size, 3), dtype=torch.uint8, generator=random)
    lengths = torch.tensor([len(text) for text in TEXTS], dtype=torch.int32)
    texts = torch.randint(0, 1040, (len(TEXTS), int(lengths.max()) + 1), generator=random)
    for row, text in enumerate(TEXTS):
        texts[row, : len(text)] = torch.tensor(text)
    boxes, scores, *_ = _found(twin, pixels, texts, lengths)
    image = twin.prepared.image
    for row, text in enumerate(TEXTS):
        with torch.no_grad():
            want = twin.reference(normalised(pixels[row : row + 1], image), torch.tensor([text]))
        assert difference(want.pred_boxes[0], boxes[row]) < TOLERANCE
        logits = want.logits[0, :, : len(text)]
        assert difference(logits, scores[row, :, : len(text)]) < TOLERANCE


def test_a_token_sees_its_own_phrase_and_counts_in_it() -> None:
    texts = torch.tensor([[START, 7, 8, STOP, 9, STOP, END, STOP, 3]])
    phrases = Phrases.of(texts, torch.tensor([7], dtype=torch.int32))
    assert phrases.positions.tolist() == [[0, 0, 1, 2, 0, 1, 0, 0, 0]]
    visible = (phrases.bias[0, 0] == 0).int().tolist()
    assert visible[1] == [0, 1, 1, 1, 0, 0, 0, 0, 0]
    assert visible[4] == [0, 0, 0, 0, 1, 1, 0, 0, 0]
    assert [sum(row) for row in visible] == [1, 3, 3, 3, 2, 2, 1, 1, 1]


def test_no_grid_of_a_traced_image_is_one_row_or_column(twins: Twins) -> None:
    """Tracing takes a size of one for a constant, and other images would be refused."""
    twin = twins("grounding-dino", "odd")
    image = twin.prepared.image
    small = image.model_copy(update={"size": (40, 40)})
    assert small.shape[:2] == (40, 40)
    sizes = twin.architecture.graphs(twin.network, small).lowerings["detect"].traced_sizes
    for side, stride in zip(("height", "width"), twin.network.config.strides[-1], strict=True):
        assert sizes[side] > stride


def test_places_that_are_given_take_the_place_of_the_best(twins: Twins) -> None:
    module = twins("grounding-dino", "odd").graphs().lowerings["detect"].module
    pixels = torch.randint(0, 256, (1, 60, 84, 3), dtype=torch.uint8)
    inputs = pixels, torch.tensor([TEXTS[0]]), torch.tensor([len(TEXTS[0])], dtype=torch.int32)
    with torch.no_grad():
        boxes, scores, chosen, best = module(*inputs)
        again = module(*inputs, chosen)
        other = module(*inputs, chosen.flip(1))
    assert all(torch.equal(a, b) for a, b in zip((boxes, scores, chosen, best), again, strict=True))
    assert torch.equal(other[2], chosen.flip(1))
    assert not torch.allclose(other[1], scores)
    assert (other[3] >= best).all()
    assert (other[3] > best).any()  # a choice that is not the best is seen in the scores


def _written(twin: TwinPair, folder: Path, change: Any) -> Checkpoint:
    (folder / "config.json").write_bytes((twin.checkpoint.folder / "config.json").read_bytes())
    tensors = load_file(twin.checkpoint.folder / "model.safetensors")
    save_file(change(tensors), folder / "model.safetensors")
    return open_checkpoint(str(folder))


def _all_heads(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Every layer's box head, the model's and its decoder's, as older files have them."""
    of_first = "bbox_embed.0."
    heads = {name.split(of_first)[1]: each for name, each in tensors.items() if of_first in name}
    kept = {name: each for name, each in tensors.items() if ".bbox_embed." not in f".{name}"}
    return kept | {
        f"{place}bbox_embed.{layer}.{name}": each.clone()
        for place in ("", "model.decoder.")
        for layer in range(PLAIN["decoder_layers"])
        for name, each in heads.items()
    }


def _first_heads(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The first layer's alone."""
    whole = _all_heads(tensors)
    return {
        name: each
        for name, each in whole.items()
        if ".bbox_embed." not in f".{name}" or name.startswith("bbox_embed.0.")
    }


def _newer_tower(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The names of Swin's layers behind `swin.`, or without it, as the file does not have them."""
    base = "model.backbone.conv_encoder.model."

    def renamed(name: str) -> str:
        inner = name.removeprefix(base)
        if inner == name or inner.startswith("hidden_states_norms"):
            return name
        return base + (
            inner.removeprefix("swin.") if inner.startswith("swin.") else f"swin.{inner}"
        )

    return {renamed(name): each for name, each in tensors.items()}


@pytest.mark.parametrize("change", [_all_heads, _first_heads, _newer_tower])
def test_every_layout_of_names_is_read(change: Any, twins: Twins, tmp_path: Path) -> None:
    twin = twins("grounding-dino", "plain")
    network = SourceModel(_written(twin, tmp_path, change)).network
    wanted = twin.network.state_dict()
    assert all(torch.equal(wanted[name], each) for name, each in network.state_dict().items())


def test_defaults_are_those_of_the_published_configuration() -> None:
    config = architecture("grounding-dino").read_config({"model_type": "grounding-dino"})
    assert (config.width, config.queries, config.grids, config.tokens) == (256, 900, 4, 256)
    assert config.strides == ((8, 8), (16, 16), (32, 32), (64, 64))
    assert config.image.widths == (192, 384, 768)
    assert (config.limits.max_input_tokens, config.text.width) == (256, 768)


@pytest.mark.parametrize("precision", [Precision.INT8, Precision.FP16, Precision.BF16])
def test_lower_precisions_are_refused(precision: Precision, twins: Twins) -> None:
    graphs = twins("grounding-dino", "plain").graphs()
    check_precision(graphs, Precision.FP32)
    with pytest.raises(SetupError, match=f"--precision {precision} is not available .* use fp32"):
        check_precision(graphs, precision)


def test_more_queries_than_a_small_image_has_places_are_refused(twins: Twins) -> None:
    twin = twins("grounding-dino", "plain")
    image = twin.prepared.image
    small = image.model_copy(update={"size": (16, 16)})
    with pytest.raises(CheckpointError, match="fewer than num_queries = 9"):
        twin.architecture.graphs(copy.deepcopy(twin.network), small)


@pytest.mark.parametrize(("size", "delimiters"), SMALL)
def test_vocabulary_without_some_delimiter_is_read_as_by_transformers(
    size: int, delimiters: tuple[int, ...], tmp_path: Path
) -> None:
    text = twin_of("grounding-dino").configs["odd"]["text_config"]
    changes = {"text_config": {**text, "vocab_size": size}}
    reference = make_twin("grounding-dino", "odd", tmp_path, changes)
    twin = pair_of("grounding-dino", "odd", tmp_path, reference)
    for place, want, got in compare(twin):
        assert difference(want, got) < TOLERANCE, place
    graphs = twin.graphs()
    manifest, _ = build_manifest(Request("twin"), 1, twin.source, graphs)
    assert manifest.tasks["detect"]["delimiters"] == delimiters
    for seed in range(3):
        probe = Probe(size, size, seed)
        graph = graphs.lowerings["detect"].graph
        port = graph.input(Role.TOKENS)
        assert port is not None
        assert stateless_feeds(graph, manifest, probe, 4, 9)[port.name].max() < size
