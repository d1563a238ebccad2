"""The non-linearities that checkpoints name in `activation_function` and `hidden_act`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from inference.errors import CheckpointError

Activation = Callable[[Tensor], Tensor]


def quick_gelu(x: Tensor) -> Tensor:
    """GELU through a sigmoid, as in the first CLIP (Hendrycks 2016 §2, arXiv 1606.08415)."""
    return x * torch.sigmoid(1.702 * x)


_tanh_gelu = partial(functional.gelu, approximate="tanh")

ACTIVATIONS: dict[str, Activation] = {
    "gelu": functional.gelu,  # exact, through erf
    "gelu_new": _tanh_gelu,
    "gelu_fast": _tanh_gelu,
    "gelu_pytorch_tanh": _tanh_gelu,
    "quick_gelu": quick_gelu,
    "relu": functional.relu,
    "silu": functional.silu,
    "swish": functional.silu,
    "tanh": torch.tanh,
}


def activation(name: str) -> Activation:
    """The function of that name.

    Raises:
        CheckpointError: a name that we do not have.
    """
    if name not in ACTIVATIONS:
        raise CheckpointError(
            f"activation {name!r} is not supported; supported are: {', '.join(ACTIVATIONS)}"
        )
    return ACTIVATIONS[name]
