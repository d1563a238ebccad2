"""Calls that meet at Triton do not hold each other up.

With a queue policy in `config.pbtxt`, Triton's dynamic batcher (24.10) misses the end of a batch
and sleeps for 500 ms, several times over while 32 sequences wait.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import pytest
from PIL import Image

from triptych import Client

pytestmark = pytest.mark.integration

ITEMS = 32
ROUNDS = 9
MOST_S = 1.0
"""Measured on two busy cores: 0.07 s and 0.2 s, with a queue policy 2.1 s and 3.1 s."""


def median_s(ask: Callable[[], object]) -> float:
    times = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        ask()
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def test_texts_of_a_batch_are_translated_together(client: Client) -> None:
    assert median_s(lambda: client.translate(["hola"] * ITEMS)) < MOST_S


def test_pictures_of_a_batch_are_captioned_together(client: Client) -> None:
    pictures = [Image.new("RGB", (64, 64), "red")] * ITEMS
    assert median_s(lambda: client.caption(pictures)) < MOST_S
