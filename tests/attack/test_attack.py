"""What an attack does to others is seen, and a selection of the attacks does nothing."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from inference.processing.image import decode_image
from tests.attack import cases as _cases  # noqa: F401
from tests.attack import report
from tests.attack.attack import CASES, Attack, Case
from tests.attack.bystander import HEALTH, IMAGE, TRANSLATION, Bystander, Call
from tests.attack.cases.files import png, progressive_jpeg
from tests.attack.report import Result, run_case
from tests.attack.stacks import Target, keyed, keyless

SHORT_MODELS = (
    *("example-es-en", "example-gpt", "example-chat"),
    *("example-vit", "example-vit-attention"),
)
CASE = Case("a", 1, "something", lambda _: lambda attack: attack.wait())
STOPPING = Case("b", 0, "something", lambda _: lambda attack: attack.wait(), stops_models=True)


def calls(kind: str, seconds: float = 0.01, answer: str = "200") -> list[Call]:
    return [Call(kind, 0.0, seconds, answer == "200", answer)]


@pytest.mark.parametrize(
    ("case", "seen", "failures"),
    [
        (CASE, calls(HEALTH) + calls(TRANSLATION), 0),
        (CASE, calls(HEALTH, 0.3) + calls(TRANSLATION), 1),
        (CASE, calls(HEALTH) + calls(TRANSLATION, 2.1), 1),
        (CASE, calls(HEALTH) + calls(TRANSLATION, answer="429"), 1),
        (CASE, calls(HEALTH, answer="ConnectionResetError") + calls(TRANSLATION), 1),
        (CASE, calls(HEALTH), 1),
        (CASE, calls(HEALTH) + calls(TRANSLATION) + calls(IMAGE, 6), 1),
        (STOPPING, calls(HEALTH) + calls(TRANSLATION, 9, answer="503"), 0),
        (STOPPING, calls(HEALTH, 0.3) + calls(TRANSLATION, 9), 1),
    ],
)
def test_slow_or_wrong_answers_of_others_are_seen(
    case: Case, seen: list[Call], failures: int
) -> None:
    assert len(report.judge_calls(case, seen)) == failures


@pytest.mark.parametrize(
    ("printed", "is_wrong"),
    [
        ("answered\n" * 10, False),
        ("Traceback (most recent call last):\nKeyError: 1\n", True),
        ("ERROR bug request_id=1\n", True),
        ("x" * 1_000_000, True),
    ],
)
def test_stack_traces_and_floods_of_the_log_are_seen(printed: str, *, is_wrong: bool) -> None:
    assert bool(report.judge_log(printed, requests=10)) == is_wrong


@pytest.mark.parametrize(
    ("answer", "is_allowed"),
    [
        *((each, True) for each in ("200", "431", "503", "closed", "RESOURCE_EXHAUSTED")),
        *((each, False) for each in ("500", "502", "101", "INTERNAL", "UNKNOWN")),
    ],
)
def test_only_declared_answers_are_allowed(answer: str, *, is_allowed: bool) -> None:
    assert report.is_allowed(answer, CASE) == is_allowed


def test_same_seed_same_attack() -> None:
    case = CASES["archives-damaged"]
    first, again, other = (_sent(case, seed) for seed in (1, 1, 2))
    assert first == again != other


def _sent(case: Case, seed: int) -> list[bytes]:
    sent = []

    class Recorder(Attack):
        def send_all(self, requests, at_once=4):
            sent.extend(request.body for request in requests)

    target = Target("", 0, "", 0, Path(), None, None, 1)
    run = case.prepare(random.Random(f"{seed}/{case.name}"))
    run(Recorder(target, random.Random(0), 1))
    return sent


def test_every_finding_of_requests_has_a_case() -> None:
    findings = {case.finding for case in CASES.values()}
    offline = {15, 16, 17, 21}  # tests/export, tests/inference/processing, tests/docs
    assert set(range(1, 22)) - offline <= findings
    assert sum(not case.finding for case in CASES.values()) >= 21


def test_made_images_are_images() -> None:
    for is_interlaced in (False, True):
        assert decode_image(png(37, 21, 6, is_interlaced=is_interlaced)).size == (37, 21)
    assert decode_image(progressive_jpeg(80, 3)).size == (80, 80)


def test_table_has_the_findings_and_failures() -> None:
    good = Result(CASE, 0.01, 0.1, 0.02, 0.01, 2**20, Counter({"200": 2}), 1.0, ())
    bad = Result(STOPPING, 0.01, 0.1, 0, 0.01, 0, Counter(), 1.0, ("too slow",))
    rows = report.table([good, bad]).splitlines()[2:]
    assert rows[0] == "| `a` (1) | something | 10 ms, 100 ms, 20 ms | +1 MiB | 200 × 2 |"
    assert "Triton restarts" in rows[1]
    assert "**too slow**" in rows[1]


@pytest.fixture(scope="module")
def targets(
    repository: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[bool, tuple[Target, Bystander]]]:
    """The stacks without and with keys, each with its other client."""
    folders = [tmp_path_factory.mktemp("attack") for _ in range(2)]
    with (
        keyed(repository, folders[0], models=SHORT_MODELS) as closed,
        keyless(repository, folders[1]) as open_,
    ):
        seen = {False: Bystander(closed), True: Bystander(open_)}
        yield {False: (closed, seen[False]), True: (open_, seen[True])}
        for each in seen.values():
            each.close()


@pytest.mark.full
@pytest.mark.integration
@pytest.mark.parametrize("name", [case.name for case in CASES.values() if case.is_short])
def test_attack_does_nothing_to_others(
    name: str, targets: dict[bool, tuple[Target, Bystander]]
) -> None:
    case = CASES[name]
    result = run_case(case, *targets[case.is_keyless], seed=0)
    assert not result.failures, report.line(result)
