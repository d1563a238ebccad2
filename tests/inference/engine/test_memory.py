"""A capacity that a device cannot hold is refused before the first request."""

from __future__ import annotations

import pytest

from inference.bundle.manifest import Bundle, Limits
from inference.engine.memory import check_memory
from inference.engine.runners.ort.runner import OrtRunner
from inference.engine.scheduler import Capacity
from inference.errors import BundleError
from tests.inference.engine.host_device import HostDevice
from tests.inference.engine.toy_bundles import language_bundle

PREFIXES = 1 << 18
POSITION = 2 * 2 * 8 * 4  # bytes: layers, keys and values, width, float32


def capacity(rows: int) -> Capacity:
    return Capacity(rows=rows, prefix_bytes=PREFIXES)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """Of at most 512 positions."""
    made = language_bundle(tmp_path_factory.mktemp("language"))
    limits = Limits(max_total_tokens=512)
    return Bundle(made.folder, made.manifest.model_copy(update={"limits": limits}))


def check(bundle: Bundle, free_bytes: int, wanted: Capacity) -> None:
    device = HostDevice()
    runner = OrtRunner(bundle, 1, device=device)
    device.runtime.capacity_bytes = device.runtime.allocated_bytes + free_bytes
    check_memory(runner, bundle.manifest, wanted)


def test_memory_for_every_row_at_its_longest_is_enough(bundle: Bundle) -> None:
    scores = 64 * 24 * 8
    check(bundle, 64 * 512 * POSITION + PREFIXES + scores, capacity(64))


def test_rows_that_fit_are_named_and_fit(bundle: Bundle) -> None:
    free = 40 * 512 * POSITION + PREFIXES
    with pytest.raises(BundleError, match="for 64 rows, its device has") as refused:
        check(bundle, free, capacity(64))
    assert "max_rows 32 would fit" in refused.value.message  # 48 is the next size of arenas
    check(bundle, free, capacity(32))


def test_no_row_fits(bundle: Bundle) -> None:
    with pytest.raises(BundleError, match="0 MiB free: not even one row fits"):
        check(bundle, 1000, capacity(64))


def test_bound_on_states_bounds_what_is_needed(bundle: Bundle) -> None:
    check(bundle, 1 << 20, Capacity(rows=64, state_bytes=1 << 18, prefix_bytes=PREFIXES))


def test_memory_of_the_host_is_not_checked(bundle: Bundle) -> None:
    check_memory(OrtRunner(bundle, 1), bundle.manifest, Capacity(rows=4096, state_bytes=1 << 50))
