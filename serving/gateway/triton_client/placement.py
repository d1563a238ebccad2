"""The server that a call goes to: least outstanding tokens, and equal prompts together (D105)."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

from inference.tasks.shared.model_calls import Call, GenerateCall
from serving.gateway.triton_client.endpoint import Endpoint, work_of

PREFIX_TOKENS = 48
"""Of a prompt: what begins equally goes to one server. An engine keeps no shorter prefixes
(`inference.engine.scheduler.Capacity.prefix_min_tokens`)."""
MORE_LOAD = 1.25
MORE_TOKENS = 512
"""A server takes a prompt for its prefix while it has at most so much more to do than another."""


def choose(endpoints: Sequence[Endpoint], call: Call) -> Endpoint:
    """The server for a call.

    Equal prefixes choose the same one by rendezvous hashing (Thaler and Ravishankar 1998), which
    needs no state: several gateways choose alike, and a server that comes or goes moves its own
    prefixes only. One that is overloaded is passed over for the next (bounded loads: Mirrokni et
    al., arXiv 1608.01350).

    Args:
        endpoints: At least one.
    """
    work = work_of(call)
    least = min(endpoints, key=lambda one: (one.load(work), one.last_choice))
    prefix = _prefix(call)
    if prefix is None:
        return least
    limit = least.load(work) * MORE_LOAD + MORE_TOKENS
    fitting = [one for one in endpoints if one.load(work) <= limit]
    return max(fitting, key=lambda one: _rank(prefix, one.name))


def _prefix(call: Call) -> bytes | None:
    """What the engine could share with other prompts; None: too little."""
    if not isinstance(call, GenerateCall):
        return None
    ids = call.inputs.get("prompt_ids")
    if ids is None or ids.size < PREFIX_TOKENS:
        return None
    return call.model.encode() + bytes(ids.reshape(-1)[:PREFIX_TOKENS].tobytes())


def _rank(prefix: bytes, name: str) -> bytes:
    return blake2b(prefix, digest_size=8, key=name.encode()[:64]).digest()
