"""What an engine needs of a bundle: its runner on a device, memory, and the check of requests."""

from __future__ import annotations

from inference.bundle.manifest import Bundle, Manifest
from inference.engine.request import RequestValidator
from inference.engine.runners.ort.runner import OrtRunner
from inference.engine.runners.ort.sessions import CpuDevice
from inference.engine.runners.protocol import Runner
from inference.engine.scheduler import Capacity
from inference.engine.state.device import Device
from inference.engine.state.group_state import BufferShape
from inference.errors import BundleError, InvalidRequest, SetupError
from inference.processing.grammars import GrammarCompiler
from inference.processing.terms import WordEdges
from inference.processing.tokenizer_kinds import load_tokenizer

_MEBIBYTE = 1 << 20


def check_memory(runner: Runner, manifest: Manifest, capacity: Capacity) -> None:
    """Refuses a capacity that the free memory of the runner's device cannot hold.

    Where the model states no limit of length, the bound on all states is what may be needed.

    Raises:
        BundleError: says how many rows would fit.
    """
    free = runner.free_bytes
    if free is None:
        return
    needed = _needed_bytes(runner, manifest, capacity, capacity.rows)
    if needed <= free:
        return
    fitting = [
        rows
        for rows in range(1, capacity.rows)
        if _needed_bytes(runner, manifest, capacity, rows) <= free
    ]
    what = f"max_rows {fitting[-1]} would fit" if fitting else "not even one row fits"
    raise BundleError(
        f"{manifest.name} may need {needed // _MEBIBYTE} MiB for {capacity.rows} rows, its device "
        f"has {free // _MEBIBYTE} MiB free: {what}; less state_memory or prefix_memory needs less"
    )


def _needed_bytes(runner: Runner, manifest: Manifest, capacity: Capacity, rows: int) -> int:
    """Bytes of the states of so many rows at their longest, of the prefix cache, of scores."""
    limits = manifest.limits
    scores = 2 * 4 * rows * runner.vocabulary_size
    prefixes = capacity.prefix_bytes if runner.capabilities.shares_prefixes else 0
    states = capacity.state_bytes
    if limits.max_total_tokens is not None:
        source = limits.max_input_tokens or 0
        extent = BufferShape.holding(rows, limits.max_total_tokens, source)
        states = min(states, runner.footprint.bytes(1, extent))
    return states + prefixes + scores


SPARE_BYTES = 512 << 20
"""Released buffers kept for reuse, unless the caller decides otherwise."""


def make_runner(
    bundle: Bundle, device: str = "cpu", *, threads: int = 0, spare_bytes: int = SPARE_BYTES
) -> Runner:
    """A runner of a generator's bundle.

    Args:
        device: `cpu`, `cuda` or `cuda:N`, N being the number of the card.
        threads: Intra-op threads, by `thread_count`.
        spare_bytes: Bound on released buffers kept for reuse.

    Raises:
        SetupError: the device is not supported, not there (a DeviceError), or not the one that the
            bundle is for.
        BundleError: the bundle's graphs or dtypes are not supported on the device.
    """
    if bundle.manifest.runtime == "openvino":
        return _paged_runner(bundle, device, threads, spare_bytes)
    return OrtRunner(bundle, threads, spare_bytes, _device(bundle, device))


def _paged_runner(bundle: Bundle, device: str, threads: int, spare_bytes: int) -> Runner:
    """The runner over OpenVINO, which not every installation has."""
    if device != "cpu":
        raise SetupError(f"{bundle.manifest.name} is for OpenVINO, which runs on the CPU here")
    try:
        from inference.engine.runners.openvino.runner import PagedRunner
    except ImportError as error:
        raise SetupError(
            f"{bundle.manifest.name} is for OpenVINO: pip install 'triptych[openvino-runtime]'"
        ) from error
    return PagedRunner(bundle, threads, spare_bytes)


def _device(bundle: Bundle, device: str) -> Device:
    if device == "cpu":
        return CpuDevice()
    kind, _, number = device.partition(":")
    if kind != "cuda" or not (number or "0").isdecimal():
        raise SetupError(
            f"device {device!r} is not supported for generators: supported are 'cpu', 'cuda' and "
            "'cuda:N'"
        )
    manifest = bundle.manifest
    if manifest.device != "cuda":
        raise SetupError(
            f"{manifest.name} version {bundle.version} is for the CPU: export it with --device cuda"
        )
    from inference.engine.runners.cuda.device import CudaDevice

    return CudaDevice(int(number or 0))


def bundle_validator(bundle: Bundle) -> RequestValidator:
    """Checks requests of one bundle; takes phrases and grammars where its tokenizer can."""
    return RequestValidator(
        bundle.manifest, lambda: _word_edges(bundle), GrammarCompiler(bundle).compile_rules
    )


def _word_edges(bundle: Bundle) -> WordEdges:
    """Edges of words in the bundle's vocabulary."""
    tokenizer, size = load_tokenizer(bundle), bundle.manifest.vocabulary_size
    if tokenizer is None or size is None:
        raise InvalidRequest(f"{bundle.manifest.name} has no tokenizer: it takes no phrases")
    return WordEdges.of(tokenizer, size)
