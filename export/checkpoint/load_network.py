"""A network with a checkpoint's weights, planned on the device `meta` before it is allocated.

`config.json` gives the sizes of what is built, the headers of the weight files those of what there
is. Where they differ, or the network has no room in memory, nothing has been allocated.

Decision D90.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.overrides import TorchFunctionMode

from export.checkpoint.checkpoint import CONFIG, OPEN_CLIP_CONFIG, Checkpoint, load
from export.checkpoint.mapped_tensors import tensors_in
from export.checkpoint.memory import require_memory
from export.config.weight_names import Rename
from export.layers.attention.attention import Attention
from inference.errors import CheckpointError

Network = TypeVar("Network", bound=nn.Module)

_SPARE_PARAMETERS = 1000
_PARAMETERS_PER_TENSOR = 8
"""A tensor of a file becomes at most three parameters; the rest is for small files."""
_RANDOM = {
    *("normal_", "uniform_", "trunc_normal_", "kaiming_uniform_", "kaiming_normal_"),
    *("xavier_uniform_", "xavier_normal_"),
}
"""Functions that draw initial values."""


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
        CheckpointError: lists every missing, unexpected and misshaped tensor.
        SetupError: the export needs more memory than the limit.
    """
    with torch.device("meta"), _bounded_parameters(checkpoint):
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
        """Calls a function of torch, unless it draws."""
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

    def counted(module: nn.Module, name: str, parameter: Tensor | None) -> None:
        nonlocal count
        count += 1
        if count > most:
            config = OPEN_CLIP_CONFIG if checkpoint.is_open_clip else CONFIG
            raise CheckpointError(
                f"{checkpoint.folder} does not fit its {config}: it describes more than {most} "
                f"parameters, and the weight files hold {tensors} tensors"
            )

    handle = register_module_parameter_registration_hook(counted)
    try:
        yield
    finally:
        handle.remove()
