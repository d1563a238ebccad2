"""One graph of a bundle in the classes that serve it, for measurements before it is published."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from google.protobuf import json_format, text_format
from tritonclient.grpc import model_config_pb2 as pb

from export.parity.graph_runs import bundle_path
from export.parity.parity_inputs import Feeds, Probe, stateless_feeds
from export.tokenizer.special_token_templates import Framing
from export.triton_config import stateless_config
from inference.bundle.manifest import Bundle, Placement, Role
from inference.stateless.sessions import Sessions
from inference.tasks.shared.length_buckets import fixed_width

BATCHES = (1, 8)
LENGTHS = (16, 128)


def open_graph(bundle: Bundle, key: str, placement: Placement | None = None) -> Sessions:
    """One instance of a graph, loaded and ready; used by one thread.

    Args:
        placement: Whose threads it has; by default the manifest's.
    """
    manifest = bundle.manifest
    text = stateless_config(
        manifest.parts[key],
        manifest.graphs[key],
        runtime=manifest.runtime,
        precision=manifest.precision,
        placement=placement or manifest.placement,
    )
    message = text_format.Parse(text, pb.ModelConfig())
    config: dict[str, Any] = json_format.MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    if manifest.runtime == "openvino":
        from inference.stateless.compiled_graphs import CompiledGraphs

        return CompiledGraphs(bundle_path(bundle, key), config)
    from inference.stateless.graph_sessions import GraphSessions

    return GraphSessions(bundle_path(bundle, key), config)


def open_call(
    bundle: Bundle, key: str, placement: Placement | None = None
) -> Callable[[Feeds], object]:
    """All outputs of one instance of a graph."""
    outputs = [port.name for port in bundle.manifest.graphs[key].outputs]
    graphs = open_graph(bundle, key, placement)
    return lambda feeds: graphs.run(outputs, feeds)


def panel(bundle: Bundle) -> dict[str, tuple[str, Feeds]]:
    """Name → graph and inputs: every part but attention pictures, at the batches and lengths above.

    All texts of a batch have the same length.
    """
    manifest, found = bundle.manifest, {}
    size = manifest.source_vocabulary_size or 1
    longest = manifest.limits.max_input_tokens or max(LENGTHS)
    for key, graph in manifest.graphs.items():
        if graph.output(Role.ATTENTION):
            continue
        has_lengths = graph.input(Role.TOKENS) is not None and fixed_width(graph) is None
        lengths = sorted({min(length, longest) for length in LENGTHS}) if has_lengths else [None]
        for length in lengths:
            for batch in BATCHES:
                probe = _EqualLengths(size, size, framing=Framing.of(bundle))
                feeds = stateless_feeds(graph, manifest, probe, batch, length or longest)
                name = f"{key}, batch {batch}" + (f", {length} tokens" if length else "")
                found[name] = (key, feeds)
    return found


class _EqualLengths(Probe):
    """Texts of one length."""

    def lengths(self, longest: int, count: int) -> Any:
        """(count,) of `longest`."""
        return np.full(count, longest, np.int32)
