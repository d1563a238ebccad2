"""Averages the weights of two rounds of one training: a last step that costs no training.

Rounds that start from each other end in one basin, and the middle of a basin is flatter than its
rim (Izmailov et al. 2018, "Averaging Weights Leads to Wider Optima and Better Generalization",
arXiv 1803.05407).
"""

from __future__ import annotations

import argparse
from pathlib import Path

from safetensors.torch import load_file, save_file
from torch import Tensor

WEIGHTS = "model.safetensors"


def main() -> None:
    """Replaces the weights of the later round by the mean of both."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("earlier", type=Path, help="checkpoint folder of the round before")
    parser.add_argument("later", type=Path, help="checkpoint folder whose weights are replaced")
    arguments = parser.parse_args()
    files = [folder / WEIGHTS for folder in (arguments.earlier, arguments.later)]
    mean = averaged(*(load_file(file) for file in files))
    save_file(mean, files[1], metadata={"format": "pt"})
    print(f"{files[1]} holds the mean of {len(mean)} tensors")


def averaged(earlier: dict[str, Tensor], later: dict[str, Tensor]) -> dict[str, Tensor]:
    """The mean of two checkpoints, tensor by tensor, in the later one's dtype.

    Raises:
        ValueError: they are not of one network.
    """
    if {k: v.shape for k, v in earlier.items()} != {k: v.shape for k, v in later.items()}:
        raise ValueError(
            "the two checkpoints have different tensors: average rounds of one network"
        )
    return {
        name: ((earlier[name].float() + value.float()) / 2).to(value.dtype)
        for name, value in later.items()
    }


if __name__ == "__main__":
    main()
