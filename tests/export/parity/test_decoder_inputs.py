"""The order in which a decoder's graphs are called."""

from __future__ import annotations

from itertools import groupby

import pytest

from export.parity.decoder_inputs import observe_decoder
from export.parity.graph_runs import torch_run
from export.parity.parity_inputs import Array, Feeds, Probe
from export.pipeline.manifest import Request, build_manifest
from tests.export.conftest import Twins
from tests.export.twin import EXPORTED


@pytest.mark.parametrize("name", ["marian", "llava"])
def test_all_sources_are_admitted_before_the_first_step(name: str, twins: Twins) -> None:
    """The gate loads each graph of a large model once, and not once a case."""
    twin = twins(name, EXPORTED)
    graphs = twin.architecture.graphs(twin.network, twin.prepared.image)
    manifest, _ = build_manifest(Request("twin"), 1, twin.source, graphs)
    called: list[str] = []
    run = torch_run(graphs)

    def record(key: str, feeds: Feeds) -> dict[str, Array]:
        called.append(key)
        return run(key, feeds)

    probe = Probe(8, 8, images=manifest.text_images)
    found = [each.place for each in observe_decoder(record, manifest, probe)]
    assert [key for key, _ in groupby(called)] == ["admit", "step"]
    assert called.count("admit") == 3 + any(place.startswith("chunk") for place in found)
