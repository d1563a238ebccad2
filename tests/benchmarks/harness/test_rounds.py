"""The order in which systems are measured."""

from __future__ import annotations

from benchmarks.harness.rounds import interleave


def test_every_round_has_every_system_once_in_changing_order() -> None:
    turns = list(interleave("abc", rounds=8, rest_s=0.0))
    assert [number for number, _ in turns] == [number for number in range(8) for _ in "abc"]
    orders = ["".join(s for n, s in turns if n == number) for number in range(8)]
    assert {"".join(sorted(order)) for order in orders} == {"abc"}
    assert len(set(orders)) > 1
    assert turns == list(interleave("abc", rounds=8, rest_s=0.0))
