"""A model proves itself when it is loaded (D124).

Each version folder of a Triton model has a file with inputs, what the export computed for them, and
the checksums of the folder's files (`inference/bundle/self_check.py`). Backends, and all else that
loads a model, compute them again before it is ready: another processor, driver or runtime that
computes something else, and a truncated file, are found there and not by users.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from inference.bundle.self_check import OFF, PARAMETER, Arrays, SelfCheck
from inference.errors import BundleError
from inference.process_limits import processor_kind, processor_name

if TYPE_CHECKING:
    from inference.bundle.manifest import Graph
    from inference.engine.request import EngineRequest
    from inference.generation import Finished, Generation

TOP = 5
"""Most likely tokens whose log-probabilities are compared."""
_MOST_VALUES = 4096
"""Of one output: values at equal distances."""
_TOP_LOG_PROBS, _TOKENS = "log-probabilities", "tokens"

Infer = Callable[[Collection[str], Arrays], Arrays]
"""Names of outputs, inputs by name → these outputs."""
Generate: TypeAlias = "Callable[[EngineRequest], Finished]"

log = logging.getLogger(__name__)


class LoadCheck:
    """The check of one model while it is loaded, as a context around what loads it.

    Files are read in a thread of its own. If loading fails, a changed file is named as the cause.

    Args:
        folder: The model's version folder.
        name: Of the model and its version, for messages.
        is_enabled: Whether to check at all.
        warn: Called with a line about an older bundle.

    Raises:
        BundleError: the check's file cannot be read.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        *,
        is_enabled: bool = True,
        warn: Callable[[str], object] = log.warning,
    ) -> None:
        self._folder, self._name = folder, name
        self._check = SelfCheck.read(folder) if is_enabled else None
        if is_enabled and self._check is None:
            warn(f"{name} has no self-check: export it again to have one")

    def __enter__(self) -> Self:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checksums")
        if self._check is not None:
            self._changed = self._thread.submit(self._check.changed_files, self._folder)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Wait for the checksums.

        Raises:
            BundleError: a file is not the one that was exported.
        """
        self._thread.shutdown()
        if self._check is None:
            return
        if changed := self._changed.result():
            raise BundleError(
                f"{self._name}: {', '.join(changed)} changed since the export: export it again"
            ) from error

    @property
    def has_outputs(self) -> bool:
        """Whether there is something to compute."""
        return self._check is not None and bool(self._check.outputs)

    def compare_outputs(self, infer: Infer, names: Collection[str]) -> None:
        """Compute a stateless graph's outputs.

        Args:
            names: All of them, which a session is open for.

        Raises:
            BundleError: they are not the export's.
        """
        assert self._check is not None
        found = infer(names, self._check.inputs)
        self._judge({name: sample_values(found[name]) for name in self._check.outputs})

    def compare_tokens(self, answer: Generate, defaults: Generation) -> None:
        """Decode a generator's request.

        Raises:
            BundleError: tokens or log-probabilities are not the export's.
        """
        from inference.engine import codec  # stateless models have no engine
        from inference.generation import Overrides

        assert self._check is not None
        options = Overrides.model_validate(self._check.options)
        tensors = codec.encode_request(self._check.inputs, options)
        found = generated_outputs(answer(codec.decode_request(tensors, defaults)))
        wanted = self._check.outputs
        self._judge({name: value[: len(wanted[name])] for name, value in found.items()})

    def _judge(self, found: Arrays) -> None:
        assert self._check is not None
        problem = self._check.compare(found)
        if problem is not None:
            where = f"{processor_name()} with {processor_kind()}"
            raise BundleError(
                f"{self._name} fails its self-check: {problem} (on {where}, onnxruntime "
                f"{onnxruntime.__version__}): this processor, driver or runtime does not compute "
                "what was verified; export it on such a machine"
            )


def load_check(
    folder: Path, model: str, parameters: Mapping[str, str], warn: Callable[[str], object]
) -> LoadCheck:
    """The check of a Triton model.

    Args:
        folder: Its version folder.
        parameters: Of its configuration.
        warn: Writes a line to Triton's log.
    """
    is_enabled = parameters.get(PARAMETER) != OFF
    return LoadCheck(folder, f"{model} version {folder.name}", is_enabled=is_enabled, warn=warn)


def generated_outputs(finished: Finished) -> dict[str, NDArray[Any]]:
    """What is compared of a generator's answer: tokens (n,), log-probabilities (n, TOP), sorted."""
    best = finished.best
    top = np.full((len(best.top), TOP), -np.inf, np.float32)  # fewer where tokens are banned
    for row, each in zip(top, best.top, strict=True):
        row[: len(each)] = [value for _, value in each]
    return {_TOP_LOG_PROBS: top, _TOKENS: np.array(best.token_ids, np.int64)}


def without_ties(outputs: Arrays, tolerance: float, scale: float) -> dict[str, NDArray[Any]]:
    """Tokens up to the first near tie, where another processor may choose the other one.

    The log-probabilities of that position are compared, too: all tokens in front of it are equal.
    """
    values = outputs[_TOP_LOG_PROBS]
    margin = 2 * tolerance * float(np.abs(values[np.isfinite(values)]).max(initial=scale))
    clear = int(np.argmin([*(values[:, 0] - values[:, 1] > margin), False]))
    return {_TOP_LOG_PROBS: values[: clear + 1], _TOKENS: outputs[_TOKENS][:clear]}


def compared_ports(graph: Graph) -> list[str]:
    """Outputs of a stateless graph that are compared: numbers, not choices among near ties."""
    from inference.bundle.manifest import Role  # only an export compares

    if graph.output(Role.CHOSEN) is not None:
        scores = graph.output(Role.CHOSEN_SCORES)
        return [] if scores is None else [scores.name]
    return [port.name for port in graph.outputs if port.role is not Role.TOP_TOKENS]


def sample_values(output: NDArray[Any]) -> NDArray[np.float32]:
    """At most `_MOST_VALUES` values of an output, in order."""
    flat = np.asarray(output, np.float32).reshape(-1)
    return flat[:: -(-flat.size // _MOST_VALUES) or 1]


def draw_picture(shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """(…, height, width, 3) of stripes and steps, which takes little space in a file."""
    height, width, channels = shape[-3:]
    rows, columns = np.arange(height)[:, None, None], np.arange(width)[None, :, None]
    picture = (rows // 4 * 23 + columns // 4 * 41 + np.arange(channels) * 85) % 256
    return np.broadcast_to(picture.astype(np.uint8), shape).copy()
