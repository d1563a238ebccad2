"""Averages the weights of two successive training runs, the second resumed from the first.

Both checkpoints lie in one basin of the loss, and the centre of a basin is flatter than its
edge (Izmailov et al. 2018, "Averaging Weights Leads to Wider Optima and Better Generalization",
arXiv 1803.05407).
"""

from __future__ import annotations

import argparse
from pathlib import Path

from safetensors.torch import load_file, save_file
from torch import Tensor

WEIGHTS = "model.safetensors"


def main() -> None:
    """Replaces the later checkpoint's weights by the mean of both."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("earlier", type=Path, help="folder of the earlier checkpoint")
    parser.add_argument(
        "later", type=Path, help="folder of the later checkpoint, whose weights are replaced"
    )
    arguments = parser.parse_args()
    files = [folder / WEIGHTS for folder in (arguments.earlier, arguments.later)]
    mean = averaged(*(load_file(file) for file in files))
    save_file(mean, files[1], metadata={"format": "pt"})
    print(f"{files[1]} holds the mean of {len(mean)} tensors")


def averaged(earlier: dict[str, Tensor], later: dict[str, Tensor]) -> dict[str, Tensor]:
    """The mean of two checkpoints, tensor by tensor, in the later one's dtype.

    Raises:
        ValueError: the names or shapes of their tensors differ.
    """
    if {k: v.shape for k, v in earlier.items()} != {k: v.shape for k, v in later.items()}:
        raise ValueError(
            "the two checkpoints have different tensors; average checkpoints of one network"
        )
    return {
        name: ((earlier[name].float() + value.float()) / 2).to(value.dtype)
        for name, value in later.items()
    }


if __name__ == "__main__":
    main()
