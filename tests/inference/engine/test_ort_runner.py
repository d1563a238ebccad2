"""The ONNX Runtime runner computes the graphs' equations, on each device, however rows move."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.bundle.inputs import AlignmentSpec
from inference.bundle.manifest import Bundle, Manifest
from inference.engine.engine import EngineCore, decode, final_result
from inference.engine.request import EngineRequest, RequestValidator
from inference.engine.runner_factory import make_runner
from inference.engine.runners.candidates import (
    CellEdits,
    HostLogits,
    plain_request,
    select_candidates,
)
from inference.engine.runners.ort.logits_graphs import CellEditor, TopK
from inference.engine.runners.ort.runner import OrtRunner
from inference.engine.runners.ort.sessions import CpuDevice, session_options
from inference.engine.runners.protocol import Prompt
from inference.engine.scheduler import Capacity
from inference.engine.sequence import SequenceState
from inference.engine.state.device import Device
from inference.engine.state.group_state import BufferShape
from inference.engine.state.prefix_cache import CachedPrefix
from inference.errors import BundleError, InvalidRequest, SetupError
from inference.generation import Finished, Generation
from tests.inference.engine.fake_runner import (
    FakeRunner,
    Logits,
    Talk,
    beam_rules,
    company,
    converse,
    run_staggered,
    talk,
)
from tests.inference.engine.host_device import HostDevice
from tests.inference.engine.toy_bundles import (
    VOCABULARY,
    attention_bundle,
    attention_fit,
    attention_likeness,
    attention_logits,
    halved,
    language_bundle,
    language_logits,
    recurrent_bundle,
    recurrent_logits,
)

CAPACITY = Capacity(
    rows=32,
    prefill_tokens=24,
    prefill_tokens_beside=12,
    chunk_tokens=3,
    prefix_bytes=100 * 2 * 2 * 32,  # a hundred positions of the language model
    prefix_block_tokens=8,
    prefix_min_tokens=8,
)


@pytest.fixture(scope="module")
def attention(tmp_path_factory: pytest.TempPathFactory, device: Device) -> OrtRunner:
    return OrtRunner(
        attention_bundle(tmp_path_factory.mktemp("attention")), threads=1, device=device
    )


@pytest.fixture(scope="module")
def recurrent(tmp_path_factory: pytest.TempPathFactory, device: Device) -> OrtRunner:
    return OrtRunner(
        recurrent_bundle(tmp_path_factory.mktemp("recurrent")), threads=1, device=device
    )


@pytest.fixture(scope="module")
def language(tmp_path_factory: pytest.TempPathFactory, device: Device) -> OrtRunner:
    bundle = language_bundle(tmp_path_factory.mktemp("language"))
    return OrtRunner(bundle, threads=1, device=device)


def request(seed: int, beams: int, tokens: int) -> EngineRequest:
    """A request with a source of 1 to 40 tokens and a prompt of 0 to 5."""
    rng = np.random.default_rng(seed)
    source = rng.integers(0, VOCABULARY, rng.integers(1, 41))
    prompt = rng.integers(0, VOCABULARY, rng.integers(0, 6)).tolist()
    return EngineRequest(beam_rules(beams, tokens), source, prompt_ids=tuple(prompt))


def picture_request(seed: int, beams: int, tokens: int) -> EngineRequest:
    rng = np.random.default_rng(seed)
    pixels = rng.integers(0, 256, (2, 2, 3)).astype(np.uint8)
    prompt = rng.integers(0, VOCABULARY, rng.integers(0, 3)).tolist()
    return EngineRequest(beam_rules(beams, tokens), pixels=pixels, prompt_ids=tuple(prompt))


def prompt_request(seed: int, beams: int, tokens: int) -> EngineRequest:
    """A request with a prompt of 1 to 70 tokens that may share a prefix with others."""
    rng = np.random.default_rng(seed)
    header = np.random.default_rng(seed % 3).integers(0, VOCABULARY, (seed % 3) * 20)
    own = rng.integers(0, VOCABULARY, rng.integers(1, 31))
    return EngineRequest(beam_rules(beams, tokens), prompt_ids=(*header.tolist(), *own.tolist()))


def staggered(
    runner: OrtRunner, arrivals: Sequence[tuple[int, EngineRequest]], capacity: Capacity = CAPACITY
) -> list[Finished]:
    """Results when each request joins at its own turn."""
    steps, requests = zip(*arrivals, strict=True)
    return list(map(final_result, run_staggered(EngineCore(runner, capacity), requests, steps)))


def assert_alike(found: list[Finished], wanted: list[Finished]) -> None:
    for one, other in zip(found, wanted, strict=True):
        tokens = [hypothesis.token_ids for hypothesis in one.hypotheses]
        assert tokens == [hypothesis.token_ids for hypothesis in other.hypotheses]
        scores = [hypothesis.score for hypothesis in other.hypotheses]
        assert [h.score for h in one.hypotheses] == pytest.approx(scores, rel=1e-4, abs=1e-5)


def assert_follows(found: list[Finished], asked: Sequence[EngineRequest], logits: Logits) -> None:
    """Asserts that hypotheses are those of the equations, but for such as score alike.

    Where rounding decides between two, the one found must have the score that it claims.
    """
    reference = FakeRunner(logits, VOCABULARY, takes_chunks=False)
    for one, each in zip(found, asked, strict=True):
        [wanted] = decode(reference, [each])
        for mine, theirs in zip(one.hypotheses, wanted.hypotheses, strict=True):
            assert mine.score == pytest.approx(theirs.score, rel=1e-4, abs=1e-5)
            if mine.token_ids != theirs.token_ids:
                given = {"given_ids": mine.token_ids, "max_new_tokens": len(mine.token_ids)}
                single = {"num_beams": 1, "num_return_sequences": 1}
                rules = each.rules.model_copy(update={**given, **single})
                [again] = decode(reference, [replace(each, rules=rules)])
                assert mine.score == pytest.approx(again.hypotheses[0].score, rel=1e-4, abs=1e-5)


@given(company=company)
def test_attention_follows_its_equations(
    attention: OrtRunner, company: list[tuple[int, int, int, int]]
) -> None:
    arrivals = [(when, request(*rest)) for when, *rest in company]
    found = staggered(attention, arrivals)
    assert_follows(found, [one for _, one in arrivals], attention_logits)


@given(company=company)
def test_recurrence_follows_its_equations(
    recurrent: OrtRunner, company: list[tuple[int, int, int, int]]
) -> None:
    arrivals = [(when, picture_request(*rest)) for when, *rest in company]
    asked = [
        EngineRequest(one.rules, one.pixels.ravel().astype(np.int64), prompt_ids=one.prompt_ids)
        for _, one in arrivals
    ]
    assert_follows(staggered(recurrent, arrivals), asked, recurrent_logits)


@given(company=company)
def test_language_follows_its_equations(
    language: OrtRunner, company: list[tuple[int, int, int, int]]
) -> None:
    arrivals = [(when, prompt_request(*rest)) for when, *rest in company]
    found = staggered(language, arrivals)
    assert_follows(found, [one for _, one in arrivals], language_logits)


def test_cached_prefix_saves_prefill_and_changes_no_token(language: OrtRunner) -> None:
    header = tuple(np.random.default_rng(1).integers(0, VOCABULARY, 100).tolist())
    requests = [EngineRequest(beam_rules(), prompt_ids=(*header, n)) for n in range(8)]
    decoder = EngineCore(language, Capacity())
    answers = [final_result(run_staggered(decoder, [request])[0]) for request in requests]
    metrics = decoder.metrics
    assert (metrics.prefix_hits, metrics.prefix_tokens) == (7, 7 * 101)  # a block in part
    assert metrics.prefill_tokens == 102 + 7
    assert_alike(answers, decode(language, requests, Capacity(prefix_bytes=0)))


def test_simultaneous_requests_share_their_prefix(language: OrtRunner) -> None:
    header = tuple(np.random.default_rng(2).integers(0, VOCABULARY, 100).tolist())
    requests = [EngineRequest(beam_rules(), prompt_ids=(*header, n)) for n in range(8)]
    found = staggered(language, [(0, request) for request in requests], Capacity())
    assert_alike(found, decode(language, requests, Capacity(prefix_bytes=0)))
    decoder = EngineCore(language, Capacity())
    for request in requests:
        decoder.add(SequenceState(request, lambda event: None))
    decoder.step()
    assert (decoder.metrics.prefix_hits, decoder.rows_in_use) == (7, 8)


@given(talk=talk)
def test_turns_of_conversations_follow_the_equations(language: OrtRunner, talk: Talk) -> None:
    core = EngineCore(language, CAPACITY)
    asked, found = converse(core, talk)
    assert_follows(found, asked, language_logits)


def test_models_with_a_source_share_no_prefix(attention: OrtRunner, recurrent: OrtRunner) -> None:
    assert not attention.capabilities.shares_prefixes
    assert not recurrent.capabilities.shares_prefixes


def test_arenas_allocate_their_footprint(attention: OrtRunner) -> None:
    group = attention.group(2)
    group.admit([Prompt(np.zeros(20, np.int64), np.array([1, 2]))] * 3, [plain_request(1)] * 3)
    extent = BufferShape.holding(3, 20, 2)
    assert group.state_bytes == attention.footprint.bytes(2, extent)


def test_shrunk_group_continues_unchanged(language: OrtRunner) -> None:
    groups = [language.group(1), language.group(1)]
    prompts = [Prompt(np.arange(n) % VOCABULARY) for n in (30, 22)]
    for group in groups:
        group.admit(prompts, [plain_request(1)] * 2)
        group.retire(0)
        for token in (1, 2):
            group.step(np.array([token]), [plain_request(1)])
    held = groups[0].state_bytes
    groups[0].shrink()
    assert groups[0].state_bytes < held
    for token in range(9):
        found, wanted = (group.step(np.array([token]), [plain_request(5)]) for group in groups)
        assert found.token_ids.tolist() == wanted.token_ids.tolist()
        assert np.array_equal(found.log_probs, wanted.log_probs)


def test_state_shrinks_after_a_long_sequence_retires(attention: OrtRunner) -> None:
    group = attention.group(1)
    long, short = (
        Prompt(np.zeros(200, np.int64), np.array([1])),
        Prompt(np.array([0]), np.array([1])),
    )
    group.admit([long, short], [plain_request(1)] * 2)
    large = group.state_bytes
    group.retire(0)
    group.step(np.array([2]), [plain_request(1)])
    assert group.state_bytes < large / 2


class CountingDevice(CpuDevice):
    """Counts the inputs that are bound."""

    bound = 0

    def bind_input(self, binding: onnxruntime.IOBinding, name: str, tensor: Any) -> None:
        self.bound += 1
        super().bind_input(binding, name, tensor)


def test_rows_are_bound_once_for_each_number_of_sequences(tmp_path: Path) -> None:
    device = CountingDevice()
    group = OrtRunner(attention_bundle(tmp_path), threads=1, device=device).group(1)
    prompts = [Prompt(np.array([0]), np.array([1, 2])), Prompt(np.array([0]), np.array([3]))]
    bound, results = [], []
    for _ in range(2):
        group.admit_deferred(prompts)
        both = group.step(np.array([1, 2]), [plain_request(3)] * 2)
        group.retire(0)
        one = group.step(np.array([2]), [plain_request(3)])
        group.retire(0)
        bound.append(device.bound)
        results.append([both.log_probs.tolist(), one.log_probs.tolist()])
    assert 0 < bound[0] == bound[1]
    assert results[0] == results[1]
    prompts = [Prompt(np.array([0]), np.array([4])), Prompt(np.array([0]), np.array([5, 6]))]
    group.admit_deferred(prompts)
    found = group.step(np.array([1, 2]), [plain_request(3)] * 2)
    fresh = OrtRunner(attention_bundle(tmp_path / "fresh"), threads=1).group(1)
    fresh.admit_deferred(prompts)
    wanted = fresh.step(np.array([1, 2]), [plain_request(3)] * 2)
    assert device.bound == bound[0]
    assert np.array_equal(found.log_probs, wanted.log_probs)


def test_decoding_to_the_end_gives_all_buffers_back(tmp_path: Path) -> None:
    runner = OrtRunner(attention_bundle(tmp_path), threads=1)
    decode(runner, [request(1, 1, 5)])
    held = runner.spare_bytes
    assert held
    decode(runner, [request(1, 1, 5)])
    assert runner.spare_bytes == held


def test_count_is_limited_to_the_vocabulary() -> None:
    topk = TopK(session_options(threads=1), 4, CpuDevice())
    best = select_candidates(
        HostLogits(np.zeros((1, 4), np.float32), topk.rank), [plain_request(9)]
    )
    assert best.token_ids.shape == (1, 4)


def test_damaged_graph_is_a_bundle_error(tmp_path: Path) -> None:
    bundle = attention_bundle(tmp_path)
    bundle.path("step.onnx").write_bytes(b"not a graph")
    with pytest.raises(BundleError, match=r"cannot load step\.onnx"):
        OrtRunner(bundle, threads=1)


def test_buffers_of_an_admitted_prefill_are_kept_for_reuse(language: OrtRunner) -> None:
    language.trim()
    group = language.group(1)
    prefill = language.begin_prefill(Prompt(np.arange(1, 21)), CachedPrefix())
    held = prefill.state_bytes
    group.admit_prefilled(prefill, plain_request(1))
    assert prefill.state_bytes == 0
    assert language.spare_bytes == held > 0
    language.trim()
    assert language.spare_bytes == 0


WAYS: list[dict[str, object]] = [
    {},
    {"num_beams": 3, "num_return_sequences": 2},
    {"repetition_penalty": 1.4, "logit_bias": {4: 0.5}},
    {"num_beams": 2, "repetition_penalty": 1.2, "bad_words_ids": ((5,),)},
    {"do_sample": True, "seed": 3, "top_k": 5, "num_return_sequences": 2},
]
BUILDERS = [attention_bundle, recurrent_bundle, language_bundle]


def requests(bundle: Bundle, count: int = 20) -> list[EngineRequest]:
    """Requests of all kinds of search, with sources as the bundle takes them."""
    rng = np.random.default_rng(7)
    has_pixels = any(state.name == "hidden" for state in bundle.manifest.states)
    has_source = not has_pixels and "admit" in bundle.manifest.graphs
    made = []
    for number in range(count):
        rules = Generation.model_validate(
            {"decoder_start_ids": (0,), "eos_token_ids": (1,), "pad_token_id": 0,
             "max_new_tokens": 15, **WAYS[number % len(WAYS)]}
        )  # fmt: skip
        source = rng.integers(0, VOCABULARY, rng.integers(1, 30))
        pixels = rng.integers(0, 256, (2, 2, 3)).astype(np.uint8)
        prompt = rng.integers(0, VOCABULARY, rng.integers(0, 3 if has_source else 9)).tolist()
        made.append(
            EngineRequest(
                rules,
                source if has_source else None,
                pixels if has_pixels else None,
                prompt_ids=tuple(prompt),
            )
        )
    return made


def tokens(found: list[Finished]) -> list[list[tuple[int, ...]]]:
    return [[hypothesis.token_ids for hypothesis in one.hypotheses] for one in found]


@pytest.mark.parametrize(
    "access",
    [
        np.asarray,
        len,
        list,
        float,
        bool,
        memoryview,
        np.from_dlpack,
        lambda tensor: tensor[0],
        lambda tensor: operator.setitem(tensor, 0, 1),
        lambda tensor: tensor + 1,
        lambda tensor: tensor.ctypes,
    ],
)
def test_host_access_without_a_fetch_raises(access: Callable[[object], object]) -> None:
    tensor = HostDevice().allocate(4, "float32")
    with pytest.raises((TypeError, AttributeError)):
        access(tensor)


@pytest.mark.parametrize("build", BUILDERS)
def test_only_candidates_are_fetched(build: Callable[[Path], Bundle], tmp_path: Path) -> None:
    """Neither states nor logits: k candidates of a row, and the scores of edited cells."""
    device, bundle = HostDevice(), build(tmp_path)
    asked = [one for one in requests(bundle) if not one.rules.do_sample]
    decode(OrtRunner(bundle, 1, device=device), asked, Capacity(rows=16))
    matrices = {shape for shape, _ in device.fetched if len(shape) > 1}
    assert {len(shape) for shape, _ in device.fetched} == {1, 2}
    assert max(columns for _, columns in matrices) <= 10 < VOCABULARY


@pytest.mark.parametrize("build", BUILDERS)
def test_devices_agree(build: Callable[[Path], Bundle], tmp_path: Path) -> None:
    bundle = build(tmp_path)
    cpu, host = (
        decode(OrtRunner(bundle, 1, device=device), requests(bundle), Capacity(rows=16))
        for device in (CpuDevice(), HostDevice())
    )
    assert tokens(cpu) == tokens(host)
    for one, other in zip(cpu, host, strict=True):
        assert [h.score for h in one.hypotheses] == [h.score for h in other.hypotheses]


@pytest.mark.parametrize("build", BUILDERS)
def test_float16_bundle_answers_as_in_float32(
    build: Callable[[Path], Bundle], tmp_path: Path, device: Device
) -> None:
    full = build(tmp_path / "full")
    half = halved(build(tmp_path / "half"))
    asked = requests(full)
    runner = OrtRunner(half, 1, device=device)
    found = decode(runner, asked, Capacity(rows=16))
    wanted = decode(OrtRunner(full, 1), asked, Capacity(rows=16))
    alike = [one == other for one, other in zip(tokens(found), tokens(wanted), strict=True)]
    assert sum(alike) >= 0.8 * len(alike), "float16 rounds; a few near ties may differ"
    for one, other, same in zip(found, wanted, alike, strict=True):
        if same:
            scores = [h.score for h in other.hypotheses]
            assert [h.score for h in one.hypotheses] == pytest.approx(scores, rel=0.02, abs=0.02)
    assert runner.footprint.position * 2 == OrtRunner(full, 1).footprint.position


@given(
    edits=st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 9)), min_size=1, max_size=20, unique=True
    ),
    seed=st.integers(0, 99),
)
def test_edits_by_graph_are_those_of_numpy(edits: list[tuple[int, int]], seed: int) -> None:
    rng = np.random.default_rng(seed)
    logits, size = rng.normal(size=(4, 10)).astype(np.float32), len(edits)
    rows, token_ids = np.array(edits).T
    offset = rng.choice([0.0, -0.5, -np.inf], size).astype(np.float32)
    bias, factor = rng.normal(size=size), rng.uniform(0.5, 2, size)
    cells = CellEdits(rows, token_ids, bias.astype(np.float32), factor.astype(np.float32), offset)
    expected = logits.copy()
    raw = HostLogits(expected, lambda *_: pytest.fail("not ranked")).edit(cells)
    device = HostDevice()
    tensor = device.view(device.allocate(40, "float32"), (4, 10))
    device.upload(logits, tensor)
    assert EDITOR.run(tensor, cells).tolist() == raw.tolist()
    np.testing.assert_array_equal(device.fetch(tensor), expected)


EDITOR = CellEditor(session_options(threads=1), HostDevice())


def test_bfloat16_is_refused_where_the_provider_lacks_it(tmp_path: Path) -> None:
    bundle = language_bundle(tmp_path)
    fields = bundle.manifest.model_dump_json().replace('"float32"', '"bfloat16"')
    bundle = Bundle(bundle.folder, Manifest.model_validate_json(fields))
    with pytest.raises(BundleError, match="bfloat16, which CPUExecutionProvider does not support"):
        make_runner(bundle)


@pytest.mark.parametrize("device", ["rocm", "cuda:x", "cuda:-1", "cpu:0", ""])
def test_unknown_device_is_refused(tmp_path: Path, device: str) -> None:
    with pytest.raises(SetupError, match=f"device '{device}' is not supported"):
        make_runner(language_bundle(tmp_path), device)


def test_bundle_for_the_cpu_is_refused_on_cuda(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="is for the CPU: export it with --device cuda"):
        make_runner(language_bundle(tmp_path), "cuda:0")


def test_cuda_without_its_provider_is_refused(tmp_path: Path) -> None:
    bundle = language_bundle(tmp_path)
    manifest = bundle.manifest.model_copy(update={"device": "cuda"})
    with pytest.raises(SetupError, match=r"no CUDAExecutionProvider: install triptych\[serve-gpu"):
        make_runner(Bundle(bundle.folder, manifest), "cuda:0")


ROWS: list[dict[str, object]] = [
    {},
    {"num_beams": 3, "num_return_sequences": 3},
    {"do_sample": True, "num_return_sequences": 2, "seed": 5},
    {"num_beams": 2, "repetition_penalty": 1.5},
]


def aligned_request(number: int, **overrides: object) -> EngineRequest:
    rng = np.random.default_rng(number)
    rules = Generation.model_validate(
        {
            "decoder_start_ids": (0,), "eos_token_ids": (1,), "pad_token_id": 0,
            "max_new_tokens": 12, "return_alignment": True, **ROWS[number % len(ROWS)], **overrides,
        }
    )  # fmt: skip
    source = rng.integers(0, VOCABULARY, rng.integers(1, 40))
    prompt = rng.integers(0, VOCABULARY, rng.integers(0, 4)).tolist()
    return EngineRequest(rules, source, prompt_ids=tuple(prompt))


@pytest.fixture(scope="module")
def emitting(tmp_path_factory: pytest.TempPathFactory, device: Device) -> OrtRunner:
    return OrtRunner(
        attention_bundle(tmp_path_factory.mktemp("emits"), emits=True), threads=1, device=device
    )


@pytest.fixture(scope="module")
def aligning(tmp_path_factory: pytest.TempPathFactory, device: Device) -> OrtRunner:
    return OrtRunner(
        attention_bundle(tmp_path_factory.mktemp("aligns"), aligns=True), threads=1, device=device
    )


def test_emitted_rows_are_those_of_each_tokens_step(emitting: OrtRunner) -> None:
    requests = [aligned_request(number) for number in range(16)]
    answers = decode(emitting, requests, Capacity(rows=16))
    for one, found in zip(requests, answers, strict=True):
        source = tuple(one.source_ids.tolist())
        for hypothesis in found.hypotheses:
            tokens = hypothesis.token_ids
            wanted = [
                attention_fit(source, (*one.decoder_ids, *tokens[:place]))
                for place in range(len(tokens))
            ]
            assert hypothesis.alignment.shape == (len(tokens), len(source))
            assert hypothesis.alignment == pytest.approx(np.stack(wanted), rel=1e-3, abs=1e-3)


def test_align_graph_runs_once_per_hypothesis(
    aligning: OrtRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked_for: list[int] = []
    align = aligning.align
    monkeypatch.setattr(
        aligning, "align", lambda prompt, ids: (asked_for.append(len(ids)), align(prompt, ids))[1]
    )
    requests = [aligned_request(number) for number in range(8)]
    answers = decode(aligning, requests)
    for one, found in zip(requests, answers, strict=True):
        source = tuple(one.source_ids.tolist())
        for hypothesis in found.hypotheses:
            history = (*one.decoder_ids, *hypothesis.token_ids[:-1])
            wanted = attention_likeness(source, history)[len(one.decoder_ids) - 1 :]
            assert hypothesis.alignment == pytest.approx(wanted, rel=1e-4, abs=1e-4)
    assert len(asked_for) == sum(len(found.hypotheses) for found in answers)


def test_alignments_are_absent_unless_requested(emitting: OrtRunner, aligning: OrtRunner) -> None:
    for runner in (emitting, aligning):
        (found,) = decode(runner, [aligned_request(1, return_alignment=False)])
        assert all(hypothesis.alignment is None for hypothesis in found.hypotheses)


def test_model_without_alignments_refuses_naming_the_field(tmp_path: Path) -> None:
    manifest = attention_bundle(tmp_path).manifest
    with pytest.raises(InvalidRequest) as refusal:
        RequestValidator(manifest).validate(aligned_request(0))
    assert refusal.value.field == "return_alignment"
    telling = manifest.model_copy(update={"alignment": AlignmentSpec(over="tokens")})
    assert RequestValidator(telling).validate(aligned_request(0)).rules.return_alignment
