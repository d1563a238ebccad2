"""What a model must compute when it is loaded: a file in each version folder (D124)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_128

from inference.errors import BundleError

FILE = "self_check.npz"
PARAMETER, OFF = "self_check", "off"
"""In a model's configuration: switches the check off."""
_BLOCK_BYTES = 1 << 20
_INPUT, _OUTPUT, _FACTS = "input:", "output:", "facts"

Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class SelfCheck:
    """What one Triton model must compute.

    Attributes:
        checksums: File of the version folder → its checksum.
        tolerance: Allowed difference of an output, relative to its largest magnitude.
        scale: The least magnitude that differences are relative to.
        inputs: Of the graph, or of a generator's request; {} where the export cannot compute the
            outputs.
        outputs: By name; of a generator the tokens, and the log-probabilities of the best ones.
        options: Of a generator's request.
    """

    checksums: Mapping[str, str]
    tolerance: float = 0.0
    scale: float = 0.0
    inputs: Arrays = field(default_factory=dict)
    outputs: Arrays = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        """Write the file into a version folder."""
        facts = {
            "checksums": dict(self.checksums),
            "tolerance": self.tolerance,
            "scale": self.scale,
            "options": dict(self.options),
        }
        named = {_INPUT + name: value for name, value in self.inputs.items()}
        named |= {_OUTPUT + name: value for name, value in self.outputs.items()}
        np.savez_compressed(folder / FILE, **{_FACTS: np.array(json.dumps(facts))}, **named)

    @classmethod
    def read(cls, folder: Path) -> Self | None:
        """The file of a version folder; None where an older export wrote none.

        Raises:
            BundleError: it cannot be read.
        """
        path = folder / FILE
        if not path.exists():
            return None
        try:
            # numpy leaves the file of a damaged archive open
            with np.load(BytesIO(path.read_bytes())) as stored:
                arrays = dict(stored)
            facts = json.loads(str(arrays.pop(_FACTS)))
            return cls(
                facts["checksums"],
                facts["tolerance"],
                facts["scale"],
                _prefix_names(arrays, _INPUT),
                _prefix_names(arrays, _OUTPUT),
                facts["options"],
            )
        except Exception as error:  # zipfile, numpy and json raise classes of their own
            raise BundleError(f"{path} is damaged ({error}): export again") from error

    def changed_files(self, folder: Path) -> list[str]:
        """Names of files that are missing or not those that were exported."""
        return [
            name for name, wanted in self.checksums.items() if checksum(folder / name) != wanted
        ]

    def compare(self, found: Arrays) -> str | None:
        """How outputs differ from the export's; None where they are close enough."""
        for name, want in self.outputs.items():
            if want.dtype.kind in "iu":
                if not np.array_equal(want, found[name]):
                    return f"{name} {found[name].tolist()} are not {want.tolist()}"
                continue
            difference = _difference(want, found[name], self.scale)
            if not difference <= self.tolerance:  # NaN must fail
                return (
                    f"{name} differs by {difference:.1e} of its largest value, "
                    f"{self.tolerance:.1e} is allowed"
                )
        return None


def checksum(path: Path) -> str:
    """XXH3 of a file, which finds damage and no forgery; "" where it cannot be read.

    SHA-256 takes over four times as long, and a load waits for it.
    """
    digest, buffer = xxh3_128(), bytearray(_BLOCK_BYTES)
    try:
        with path.open("rb", buffering=0) as file:
            while count := file.readinto(buffer):
                digest.update(memoryview(buffer)[:count])
    except OSError:
        return ""
    return digest.hexdigest()


def _prefix_names(arrays: Arrays, prefix: str) -> dict[str, NDArray[Any]]:
    return {name.removeprefix(prefix): v for name, v in arrays.items() if name.startswith(prefix)}


def _difference(want: NDArray[Any], found: NDArray[Any], scale: float) -> float:
    """Largest difference relative to the largest magnitude; infinite for other shapes or holes."""
    holes = ~np.isfinite(want)
    if want.shape != found.shape or not np.array_equal(holes, ~np.isfinite(found)):
        return float("inf")
    want, found = want[~holes].astype(np.float64), found[~holes].astype(np.float64)
    if not want.size:
        return 0.0
    return float(np.abs(want - found).max()) / max(float(np.abs(want).max()), scale, 1e-30)
