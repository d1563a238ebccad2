"""A network with a checkpoint's weights, planned on the device `meta` before it is allocated.

`config.json` gives the sizes of what is built, the headers of the weight files those of what there
is. Where they differ, or the network has no room in memory, nothing has been allocated.

Decision D90.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.overrides import TorchFunctionMode

from export.checkpoint.checkpoint import CONFIG, OPEN_CLIP_CONFIG, Checkpoint, refusing_malformed
from export.checkpoint.formats import code_of
from export.checkpoint.memory import require_memory
from export.checkpoint.weight_files import tensors_in
from export.config.weight_names import Rename
from export.layers.attention.attention import Attention
from inference.errors import CheckpointError
from inference.process_limits import thread_count

Network = TypeVar("Network", bound=nn.Module)

_SPARE_PARAMETERS = 1000
_PARAMETERS_PER_TENSOR = 8
"""A tensor of a file becomes at most three parameters; the rest is for small files."""
_RANDOM = {
    *("normal_", "uniform_", "trunc_normal_", "kaiming_uniform_", "kaiming_normal_"),
    *("xavier_uniform_", "xavier_normal_"),
}
"""Functions that draw initial values."""


def limit_threads() -> None:
    """Have torch compute with no more threads than cores: it does not count a container's quota."""
    torch.set_num_threads(thread_count(torch.get_num_threads()))


def load_network(
    build: Callable[[], Network],
    checkpoint: Checkpoint,
    rename: Rename,
    limit_bytes: int | None = None,
    folder: Path | None = None,
) -> Network:
    """Builds a network and fills it with a checkpoint's tensors, in evaluation mode.

    Args:
        build: Makes the network; called twice.
        limit_bytes: Memory that an export may need; by default any.
        folder: Of the file that holds large tensors; without it they are in memory.

    Raises:
        CheckpointError: lists every missing, unexpected and misshaped tensor, or says what the
            folder holds in place of float weights (`Checkpoint.notes`).
        SetupError: the export needs more memory than the limit.
    """
    checkpoint.notes()
    with (
        refusing_malformed(checkpoint.folder, RuntimeError),
        torch.device("meta"),
        _bounded_parameters(checkpoint),
    ):
        planned = build()
    load(planned, checkpoint, rename)
    if limit_bytes is not None:
        require_memory(network_bytes(planned), limit_bytes)
    with nullcontext() if folder is None else tensors_in(folder), _NotDrawn():
        network = build().eval()
    load(network, checkpoint, rename)
    return network


class _NotDrawn(TorchFunctionMode):
    """Leaves random initial values out: a checkpoint's replace them."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__name__", "") in _RANDOM:
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)


def network_bytes(network: nn.Module) -> int:
    """Size of parameters, buffers and tables of rotations in float32, tied ones once."""
    tensors = {id(each): each for each in (*network.parameters(), *network.buffers())}
    attentions = (module for module in network.modules() if isinstance(module, Attention))
    rotaries = {id(each.heads.rotary): each.heads.rotary for each in attentions}
    rotated = sum(each.positions * each.width for each in rotaries.values() if each is not None)
    return 4 * (sum(each.numel() for each in tensors.values()) + rotated)


@contextmanager
def _bounded_parameters(checkpoint: Checkpoint) -> Iterator[None]:
    """Ends the construction of a network of far more layers than the files have tensors.

    Raises:
        CheckpointError: there are that many.
    """
    tensors = len(checkpoint.tensor_names())
    most = _SPARE_PARAMETERS + _PARAMETERS_PER_TENSOR * tensors
    count = 0

    def count_parameter(module: nn.Module, name: str, parameter: Tensor | None) -> None:
        nonlocal count
        count += 1
        if count > most:
            config = OPEN_CLIP_CONFIG if checkpoint.is_open_clip else CONFIG
            raise CheckpointError(
                f"{checkpoint.folder} does not fit its {config}: it describes more than {most} "
                f"parameters, and the weight files hold {tensors} tensors"
            )

    handle = register_module_parameter_registration_hook(count_parameter)
    try:
        yield
    finally:
        handle.remove()


def load(model: nn.Module, checkpoint: Checkpoint, rename: Rename) -> None:
    """Fills a model with a checkpoint's tensors, as float32.

    Of a model on the device `meta` only names, shapes and types are compared: nothing is read.

    Raises:
        CheckpointError: lists every missing, unexpected and misshaped tensor at once.
    """
    early = _find_absent(checkpoint, rename)  # a vocabulary's table may be a fifth of the model
    for ours in early:
        tie(model, ours, rename.tied[ours])
    wanted = model.state_dict(keep_vars=True)  # tied weights under each of their names
    loaded: set[int] = set()  # tensors, by identity
    spare: list[tuple[str, str, Tensor]] = []
    problems: list[str] = []
    is_planned = any(tensor.is_meta for tensor in wanted.values())
    for name, tensor in checkpoint.headers() if is_planned else checkpoint.tensors():
        try:
            layout = rename.find(name)
        except KeyError:
            problems.append(f"unexpected: {name} {_shape(tensor)}")
            continue
        for ours, piece in layout.pieces(tensor):
            if layout.is_spare:
                spare.append((name, ours, piece))
            else:
                problems += _place(wanted, loaded, name, ours, piece)
    for name, ours, piece in spare:
        if id(wanted.get(ours)) not in loaded:
            problems += _place(wanted, loaded, name, ours, piece)
    loaded |= _tie(model, rename.tied, wanted, loaded)
    problems += [
        f"missing: {rename.origin(ours)} {_shape(tensor)}"
        for ours, tensor in wanted.items()
        if id(tensor) not in loaded and ours not in rename.optional and ours not in early
    ]
    if problems:
        listing = "\n  ".join(problems)
        config = OPEN_CLIP_CONFIG if checkpoint.is_open_clip else CONFIG
        code = code_of(checkpoint.config)
        own = "" if code is None else f" (it names code of its own, {code}, which is not run)"
        raise CheckpointError(f"{checkpoint.folder} does not fit its {config}{own}:\n  {listing}")


def _place(
    wanted: Mapping[str, Tensor], loaded: set[int], name: str, ours: str, piece: Tensor
) -> list[str]:
    """Copies one tensor to its target; the problems, if there are any."""
    target = wanted.get(ours)
    if target is None:
        return [f"unexpected: {name} {_shape(piece)}"]
    is_second = id(target) in loaded
    loaded.add(id(target))
    if target.shape != piece.shape:
        return [f"misshaped: {name} {_shape(piece)}, expected {_shape(target)}"]
    if not piece.is_floating_point():
        return [f"not floating point: {name} is {piece.dtype}; quantised files are not supported"]
    if piece.is_meta:
        return []
    if piece.itemsize == 1:
        piece = piece.float()  # there is little arithmetic of 8-bit numbers
    # without a copy in float32, which a vocabulary's table would double
    if piece.numel() and not all(value.float().isfinite() for value in piece.aminmax()):
        return [f"not finite: {name} holds NaN or infinity"]
    if is_second and not torch.equal(target, piece.float()):
        return [f"contradicting: {name} should be tied, but differs from its twin"]
    with torch.no_grad():
        target.copy_(piece)
    return []


def _find_absent(checkpoint: Checkpoint, rename: Rename) -> set[str]:
    """Parameters that are tied where a checkpoint leaves them out, and that this one does."""
    given: set[str] = set()
    for name in checkpoint.tensor_names() if rename.tied else ():
        with suppress(KeyError):  # reported when it is placed
            given.update(rename.find(name).targets)
    return set(rename.tied) - given


def _tie(
    model: nn.Module, tied: Mapping[str, str], wanted: Mapping[str, Tensor], loaded: set[int]
) -> set[int]:
    """Makes parameters that are missing or equal one with another; the identities of the former."""
    done: set[int] = set()
    for ours, other in tied.items():
        if wanted[ours] is wanted[other]:
            continue
        is_loaded = id(wanted[ours]) in loaded
        if is_loaded and (wanted[ours].is_meta or not torch.equal(wanted[ours], wanted[other])):
            continue
        tie(model, ours, other)
        done.add(id(wanted[ours]))
    return done


def tie(model: nn.Module, name: str, other: str) -> None:
    """Makes one parameter of a network the same tensor as another."""
    owner, _, leaf = name.rpartition(".")
    setattr(model.get_submodule(owner), leaf, model.get_parameter(other))


def _shape(tensor: Tensor) -> str:
    return "×".join(map(str, tensor.shape)) or "scalar"
