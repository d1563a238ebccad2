"""Whether ONNX Runtime really runs a bundle's graphs on the card, without a copy in a call."""

from __future__ import annotations

from collections import Counter

from benchmarks.gpu.card import Card
from benchmarks.gpu.outcome import Outcome
from export.parity.verify import bundle_path
from export.targets.cuda.assignment import SHAPE_ARITHMETIC
from inference.bundle.manifest import Bundle
from inference.engine.runners.ort.sessions import session_options


def placement(card: Card, bundle: Bundle) -> Outcome:
    """Nodes by provider; those on another one may only compute shapes."""
    device = card.device()
    on_device, elsewhere = 0, Counter[str]()
    for key in bundle.manifest.graphs:
        options = session_options(1)
        options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        session = device.open(str(bundle_path(bundle, key)), options, is_captured=key == "step")
        for part in session.get_provider_graph_assignment_info():
            operators = Counter(node.op_type for node in part.get_nodes())
            if part.ep_name == device.provider:
                on_device += operators.total()
            else:
                elsewhere += operators
    passed = on_device > 0 and set(elsewhere) <= SHAPE_ARITHMETIC
    found = {"on_device": on_device, "elsewhere": dict(elsewhere)}
    return Outcome("placement", bundle.manifest.name, bundle.manifest.precision, passed, found)
