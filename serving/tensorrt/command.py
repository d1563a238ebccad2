"""The body of `triptych plan`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from inference.bundle.repository import Repository
from inference.errors import SetupError
from serving.tensorrt.plans import Plans, needs_plan, plan_folder


def plan(
    repository: Path,
    plans: Path | None,
    names: Sequence[str],
    *,
    again: bool,
    show: Callable[[str], None],
) -> int:
    """Build the plans of the newest complete versions of bundles for TensorRT.

    Args:
        plans: Their folder; None: beside the repository.
        names: Of bundles; none: all that are for TensorRT.
        again: Whether plans that fit are built again.
        show: Called with one line for each step and plan.

    Returns:
        1 if a plan could not be built, else 0.

    Raises:
        SetupError: no such bundle, or it is not for TensorRT.
    """
    known = Repository(repository)
    newest = {name: found[0] for name in known.names() if (found := known.complete(name))}
    for name in names:
        if name not in newest or not needs_plan(newest[name]):
            ours = ", ".join(each for each in newest if needs_plan(newest[each])) or "none"
            raise SetupError(
                f"{name} is not a bundle for TensorRT in {repository}; those are {ours}"
            )
    wanted = [newest[name] for name in names] or list(filter(needs_plan, newest.values()))
    if not wanted:
        show(f"{repository} has no bundle for TensorRT: triptych export --runtime tensorrt")
    folder, failed = plan_folder(repository, plans), False
    for bundle in wanted:
        try:
            for model, path in Plans(folder, show).ready(bundle, again=again).items():
                show(f"{model} version {bundle.version}: {path}")
        except SetupError as error:
            failed = True
            show(f"error: {error}")
    return int(failed)
