"""The history's captioners served: tokens of a plain search in PyTorch, attention, streams."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import GPT2Tokenizer
from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

from examples.bundles import publish_example
from examples.history.cnn_captioners.networks import (
    MAX_TOKENS,
    SHARED,
    SYSTEMS,
    System,
    read,
)
from examples.history.task_requests import as_png
from examples.scenes.scores import heldout_pictures
from tests.e2e.conftest import Stack, client_over, running
from tests.shared_folders import made_once
from triptych import Client
from triptych.client.grpc_client import GrpcClient
from triptych.errors import TriptychError

pytestmark = pytest.mark.integration
BEAMS = 3
each_system = pytest.mark.parametrize("system", SYSTEMS, ids=lambda system: system.name)


@pytest.fixture(scope="module")
def folder(shared: Path) -> Path:
    """A model repository with all of them."""

    def export(repository: Path) -> None:
        for system in SYSTEMS:
            publish_example(system.folder, repository)

    return made_once(shared / "cnn-captioners", export)


@pytest.fixture(scope="module")
def captioners(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """One stack that serves all of them."""
    with running(folder, tmp_path_factory.mktemp("log")) as stack:
        yield stack


@pytest.fixture(params=["http", "grpc"])
def either(request: pytest.FixtureRequest, captioners: Stack) -> Iterator[Client | GrpcClient]:
    """A client over each protocol."""
    with client_over(request.param, captioners) as made:
        yield made


def pictures(count: int) -> list[Image.Image]:
    return [picture for _, picture in heldout_pictures(count, seed=33)]


class PlainSearch:
    """Beam search without batches and caches: every hypothesis is read anew.

    A hypothesis scores the sum of its log-probabilities by its length, end token included; the
    search ends when no open one is better by its present length, as in `transformers`.
    """

    def __init__(self, system: System, folder: Path) -> None:
        self._system, self._network = system, read(folder)
        self._tokenizer = GPT2Tokenizer.from_pretrained(folder)
        self._processor = ViTImageProcessorPil.from_pretrained(folder)

    @torch.inference_mode()
    def __call__(self, picture: Image.Image, beams: int) -> str:
        """The best caption."""
        pixels = self._processor([picture], return_tensors="pt").pixel_values
        features = self._network.encoder.convolutions[:SHARED](pixels)
        end = self._tokenizer.eos_token_id
        alive, finished = [(0.0, [end])], []
        for length in range(1, MAX_TOKENS):
            following = [
                (score + gain, [*words, token])
                for score, words in alive
                for gain, token in self._best(features, words, 2 * beams)
            ]
            following.sort(key=lambda pair: -pair[0])
            ended = [pair for pair in following[:beams] if pair[1][-1] == end]
            finished += [(score / length, words[:-1]) for score, words in ended]
            finished = sorted(finished, key=lambda pair: -pair[0])[:beams]
            alive = [pair for pair in following if pair[1][-1] != end][:beams]
            if len(finished) == beams and alive[0][0] / length <= finished[-1][0]:
                break
        else:
            finished += [(score / length, words) for score, words in alive]
        _, best = max(finished, key=lambda pair: pair[0])
        return self._tokenizer.decode(best[1:]).strip()

    def _best(
        self, features: torch.Tensor, words: list[int], count: int
    ) -> Iterator[tuple[float, int]]:
        logits, _ = self._system.tell(self._network, features, torch.tensor([words]))
        gains, tokens = logits[0, -1].log_softmax(-1).topk(count)
        return zip(gains.tolist(), tokens.tolist(), strict=True)


@pytest.mark.full
@each_system
@pytest.mark.parametrize("beams", [1, BEAMS])
def test_served_captions_are_those_of_a_plain_search(
    system: System, beams: int, captioners: Stack
) -> None:
    shown, search = pictures(6), PlainSearch(system, system.folder)
    with Client(captioners.url, timeout=60) as client:
        found = client.caption([as_png(one) for one in shown], model=system.name, num_beams=beams)
    assert [item.text for item in found.data] == [search(picture, beams) for picture in shown]


@pytest.mark.full
@each_system
def test_stream_joins_to_the_caption(system: System, either: Client | GrpcClient) -> None:
    picture = as_png(pictures(1)[0])
    (item,) = either.caption(picture, model=system.name).data
    pieces = list(either.caption_stream(picture, model=system.name))
    assert "".join(piece.text for piece in pieces) == item.text


@pytest.mark.full
@each_system
def test_attention_is_over_the_cells_or_refused(
    system: System, either: Client | GrpcClient
) -> None:
    picture = as_png(pictures(1)[0])
    asked = {"model": system.name, "return_attention": True}
    if not system.has_attention:
        with pytest.raises(TriptychError, match="return_attention"):
            either.caption(picture, **asked)
        return
    (item,) = either.caption(picture, **asked).data
    assert tuple(item.attention.grid) == (8, 8)
    weights = np.array(item.attention.weights)
    assert weights.shape == (len(item.attention.tokens), 64)
    assert weights.sum(axis=1) == pytest.approx(1.0, abs=1e-3)
    assert (item.text or "") in "".join(item.attention.tokens)
