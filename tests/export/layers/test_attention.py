"""Attention against the layers of `transformers`, in all its forms."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import pytest
import torch
import transformers
from torch import Tensor, nn
from transformers.models.cohere import modeling_cohere as cohere
from transformers.models.gemma2 import modeling_gemma2 as gemma2
from transformers.models.llama import modeling_llama as llama
from transformers.models.mistral import modeling_mistral as mistral
from transformers.models.phi import modeling_phi as phi
from transformers.models.qwen2 import modeling_qwen2 as qwen2
from transformers.models.t5.modeling_t5 import T5Attention

from export.architecture import Lowering
from export.graphs.to_onnx import to_onnx
from export.layers.attention.attention import CrossAttention, SelfAttention
from export.layers.attention.cached_attention import CachedAttention
from export.layers.attention.heads import Heads, Rows
from export.layers.attention.positions import RelativePositions, by_distance
from export.layers.attention.rotary import Rotary, linear_scaling, llama3_scaling
from inference.bundle.manifest import Graph
from inference.bundle.manifest import Tensor as Port
from tests.export.oracle import difference
from tests.export.twins import randomise

WIDTH = 40
LENGTH = 11
POSITIONS = 32
TOLERANCE = 1e-5
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
Run = Callable[..., list[Tensor]]


@dataclass(frozen=True)
class Case:
    """One of `transformers`' decoder layers and our shape of it."""

    heads: Heads
    layer: type[nn.Module]
    rotary: type[nn.Module]
    config: type[Any]
    fields: dict[str, Any]

    def reference(self) -> tuple[nn.Module, Callable[[Tensor, Tensor], Tensor]]:
        """The layer, and (hidden states (B, T, D), mask (T, T) bool) → (B, T, D)."""
        heads = self.heads
        config = self.config(
            hidden_size=heads.model_width,
            num_attention_heads=heads.count,
            num_key_value_heads=heads.groups,
            max_position_embeddings=POSITIONS,
            attn_implementation="eager",
            **self.fields,
        )
        layer = self.layer(config, layer_idx=0).eval()
        randomise(layer)
        rotary = self.rotary(config)

        def call(x: Tensor, visible: Tensor) -> Tensor:
            embeddings = rotary(x, torch.arange(x.shape[1])[None])
            mask = torch.where(visible, 0.0, float("-inf"))[None, None]
            return layer(x, position_embeddings=embeddings, attention_mask=mask)[0]

        return layer, call


def _llama(heads: Heads, **fields: Any) -> Case:
    fields = {"head_dim": heads.width, "attention_bias": False, **fields}
    layer, rotary = llama.LlamaAttention, llama.LlamaRotaryEmbedding
    return Case(heads, layer, rotary, transformers.LlamaConfig, fields)


PLAIN = Heads(WIDTH, 4, bias=False, out_bias=False)
GROUPED = replace(PLAIN, key_value_count=2, head_width=16, rotary=Rotary(16, POSITIONS))
NARROW = replace(GROUPED, head_width=10, rotary=Rotary(10, POSITIONS))
CASES = {
    "grouped, rotated by the operator": _llama(GROUPED),
    "head width is not a multiple of eight": _llama(NARROW),
    "one key head": _llama(replace(GROUPED, key_value_count=1)),
    "biased": _llama(replace(GROUPED, bias=True, out_bias=True), attention_bias=True),
    "llama3 scaling": _llama(
        replace(GROUPED, rotary=Rotary(16, POSITIONS, scaling=llama3_scaling(4.0, 1.0, 4.0, 16))),
        rope_parameters=LLAMA3,
    ),
    "linear scaling": _llama(
        replace(NARROW, rotary=Rotary(10, POSITIONS, 500.0, scaling=linear_scaling(3.0))),
        rope_parameters={"rope_type": "linear", "rope_theta": 500.0, "factor": 3.0},
    ),
    "Qwen2: biased queries, keys and values": Case(
        replace(PLAIN, key_value_count=2, bias=True, rotary=Rotary(10, POSITIONS)),
        qwen2.Qwen2Attention, qwen2.Qwen2RotaryEmbedding, transformers.Qwen2Config, {},
    ),
    "Mistral: a window": Case(
        replace(GROUPED, window=3), mistral.MistralAttention, mistral.MistralRotaryEmbedding,
        transformers.MistralConfig, {"head_dim": 16, "sliding_window": 3},
    ),
    "Gemma 2: a soft cap, its own scale": Case(
        replace(GROUPED, soft_cap=2.0, scale=20**-0.5, window=4), gemma2.Gemma2Attention,
        gemma2.Gemma2RotaryEmbedding, transformers.Gemma2Config,
        {"head_dim": 16, "attn_logit_softcapping": 2.0, "query_pre_attn_scalar": 20,
         "sliding_window": 4},
    ),
    "Cohere: interleaved": Case(
        replace(PLAIN, key_value_count=2, rotary=Rotary(10, POSITIONS, is_interleaved=True)),
        cohere.CohereAttention, cohere.CohereRotaryEmbedding, transformers.CohereConfig,
        {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},
    ),
    "Cohere: interleaved by the operator": Case(
        Heads(64, 4, bias=False, out_bias=False,
              rotary=Rotary(16, POSITIONS, is_interleaved=True)),
        cohere.CohereAttention, cohere.CohereRotaryEmbedding, transformers.CohereConfig,
        {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},
    ),
    "Phi: half of each head": Case(
        Heads(64, 2, rotary=Rotary(16, POSITIONS)), phi.PhiAttention, phi.PhiRotaryEmbedding,
        transformers.PhiConfig,
        {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0,
                             "partial_rotary_factor": 0.5}},
    ),
}  # fmt: skip
RELATIVE = Heads(WIDTH, 4, bias=False, out_bias=False, scale=1.0, head_width=14)
T5 = "T5: relative positions"


class Layer(nn.Module):
    """A decoder's self-attention, with relative positions where it has some."""

    def __init__(self, attention: CachedAttention, relative: RelativePositions | None) -> None:
        super().__init__()
        self.attention = attention
        self.relative = relative

    def forward(
        self, x: Tensor, rows: Rows, key: Tensor, value: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        bias = None
        if self.relative is not None:
            keys = torch.arange(key.shape[2])
            bias = self.relative(rows.positions(x.shape[1]), keys)
        out, (key, value) = self.attention(x, (key, value), rows, bias)
        return out, key, value


class Layers(nn.Module):
    """All layers in one graph, called as in `step`: one export takes a tenth of the time."""

    def __init__(self, layers: list[Layer]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(
        self, lengths: Tensor, total: Tensor, last: Tensor, *rest: Tensor
    ) -> tuple[Tensor, ...]:
        rows, outputs = Rows(lengths, total, last), []
        for index, layer in enumerate(self.layers):
            outputs += layer(rest[3 * index], rows, *rest[3 * index + 1 : 3 * index + 3])
        return tuple(outputs)

    def graph(self) -> Graph:
        controls = (
            _port("lengths", "R", dtype="int32"),
            _port("total", dtype="int32"),
            _port("last", "R", dtype="int64"),
        )
        inputs, outputs = [], []
        for index, layer in enumerate(self.layers):
            heads = layer.attention.heads
            x, cache = ("R", "T", heads.model_width), ("R", heads.groups, "P", heads.cache_width)
            for kind, shape in (("x", x), ("key", cache), ("value", cache)):
                inputs.append(_port(f"{kind}_{index}", *shape))
                outputs.append(_port(f"new_{kind}_{index}", *shape))
        return Graph(file="l.onnx", inputs=(*controls, *inputs), outputs=tuple(outputs))


def _port(name: str, *shape: int | str, dtype: Any = "float32") -> Port:
    return Port(name=name, dtype=dtype, shape=shape)


def _exported(module: nn.Module, graph: Graph, path: Path, *, is_fused: bool) -> Run:
    to_onnx(Lowering(module, graph, is_fused=is_fused), path)
    domains = {node.domain for node in onnx.load(str(path)).graph.node}
    assert domains == ({"", "com.microsoft"} if is_fused else {""})
    return partial(_run, onnxruntime.InferenceSession(str(path)))


def _run(session: onnxruntime.InferenceSession, *inputs: Tensor) -> list[Tensor]:
    names = [port.name for port in session.get_inputs()]
    feeds = {name: value.numpy() for name, value in zip(names, inputs, strict=True)}
    return [torch.from_numpy(value) for value in session.run(None, feeds)]


FORMS = ("eager", "fused", "standard")
STANDARD = (
    "head width is not a multiple of eight",
    "Gemma 2: a soft cap, its own scale",
    "Cohere: interleaved",
    T5,
)
"""Cases that are exported in standard operators too: each feature once."""
ALIKE = {
    *(("one key head", "fused"), ("biased", "fused"), ("llama3 scaling", "fused")),
    *(("linear scaling", "fused"), ("Qwen2: biased queries, keys and values", "fused")),
    ("head width is not a multiple of eight", "standard"),
}
"""Exported with the operators of another case, a second each: `make test` has their eager form."""


def forms_of(name: str) -> tuple[str, ...]:
    return FORMS if name in STANDARD else FORMS[:2]


PLANS = {  # new tokens of each row, call by call; ragged calls are padded on the right
    "ragged prefill and decode": [[6, 4, 1], [1, 1, 1], [1, 1, 1], [1, 1, 1]],
    "in pieces": [[4], [3], [1], [2]],
}


def _calls(
    run: Run, heads: list[Heads], sources: list[Tensor], plan: list[list[int]]
) -> Iterator[tuple[int, Any, Tensor]]:
    """Runs a plan on one set of caches: (layer, index of its source, output) of real positions."""
    rows = len(plan[0])
    caches: list[Tensor] = []
    for each in heads:
        shape = (rows, each.groups, LENGTH + 3, each.cache_width)
        caches += [torch.zeros(shape), torch.zeros(shape)]
    lengths = [0] * rows
    for new in plan:
        after = [length + count for length, count in zip(lengths, new, strict=True)]
        controls = (
            torch.tensor(after, dtype=torch.int32),
            torch.tensor(max(after), dtype=torch.int32),
            torch.tensor(new) - 1,
        )
        rest: list[Tensor] = []
        for layer, x in enumerate(sources):
            padded = torch.randn(rows, max(new), x.shape[-1])
            for row, count in enumerate(new):
                padded[row, :count] = x[row, lengths[row] : lengths[row] + count]
            rest += [padded, *caches[2 * layer : 2 * layer + 2]]
        outputs = run(*controls, *rest)
        caches = [cache for place, cache in enumerate(outputs) if place % 3]
        for layer, out in enumerate(outputs[::3]):
            for row, count in enumerate(new):
                index = (row, slice(lengths[row], lengths[row] + count))
                yield layer, index, out[row, :count]
        lengths = after


@pytest.fixture(scope="module")
def worst(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> dict[tuple[str, str, str], float]:
    """(case, form, plan) → the largest difference from `transformers`, relative.

    Of the cases and forms that are tested in this session.
    """
    items = [item for item in request.session.items if item.path == request.path]
    calls_of = [getattr(item, "callspec", None) for item in items]
    tested = {(c.params.get("name"), c.params.get("form")) for c in calls_of if c is not None}
    layers, wanted = [], []
    torch.manual_seed(0)
    sources = [torch.randn(3, LENGTH, case.heads.model_width) for case in CASES.values()]
    sources.append(torch.randn(3, LENGTH, WIDTH))
    with torch.no_grad():
        for case, x in zip(CASES.values(), sources, strict=False):
            theirs, reference = case.reference()
            attention = CachedAttention(case.heads)
            _copied(attention, theirs)
            layers.append(Layer(attention, None))
            wanted.append(reference(x, _causal(case.heads.window)))
        theirs, relative = _t5(is_decoder=True)
        attention = CachedAttention(RELATIVE)
        _copied(attention, theirs)
        layers.append(Layer(attention, relative))
        mask = torch.where(_causal(None), 0.0, float("-inf"))[None, None]
        wanted.append(theirs(sources[-1], mask=mask)[0])
    found: dict[tuple[str, str, str], float] = {}
    names = [*CASES, T5]
    folder = tmp_path_factory.mktemp("layers")
    for form in FORMS:
        chosen = [index for index, name in enumerate(names) if (name, form) in tested]
        if not chosen:
            continue
        module = Layers([layers[index] for index in chosen])
        run: Run = lambda *inputs, module=module: list(module(*inputs))  # noqa: E731
        if form != "eager":
            path = folder / f"{form}.onnx"
            run = _exported(module, module.graph(), path, is_fused=form == "fused")
        heads = [layers[index].attention.heads for index in chosen]
        for plan, calls in PLANS.items():
            with torch.no_grad():
                outputs = list(_calls(run, heads, [sources[index] for index in chosen], calls))
            for place, index, got in outputs:
                want = wanted[chosen[place]]
                apart = ((want[index] - got).abs().max() / want.abs().max()).item()
                key = (names[chosen[place]], form, plan)
                found[key] = max(found.get(key, 0.0), apart)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize(
    ("name", "form"),
    [
        pytest.param(name, form, marks=pytest.mark.full if (name, form) in ALIKE else ())
        for name in [*CASES, T5]
        for form in forms_of(name)
    ],
)
def test_cached_attention_is_that_of_transformers(
    name: str, form: str, plan: str, worst: dict[tuple[str, str, str], float]
) -> None:
    assert worst[name, form, plan] < TOLERANCE


WRONG = {
    "Mistral: a window": {"window": 4},
    "Gemma 2: a soft cap, its own scale": {"soft_cap": 2.1},
    "Cohere: interleaved": {"rotary": Rotary(10, POSITIONS)},
    "llama3 scaling": {"rotary": Rotary(16, POSITIONS)},
    "linear scaling": {"rotary": Rotary(10, POSITIONS, 500.0)},
    "Phi: half of each head": {"rotary": Rotary(32, POSITIONS)},
    "grouped, rotated by the operator": {"rotary": None},
}


@pytest.mark.parametrize("name", WRONG)
def test_attention_of_another_shape_differs(name: str) -> None:
    case = CASES[name]
    theirs, reference = case.reference()
    attention = CachedAttention(replace(case.heads, **WRONG[name]))
    _copied(attention, theirs)
    torch.manual_seed(0)
    x = torch.randn(1, LENGTH, case.heads.model_width)
    run = Layers([Layer(attention, None)])
    with torch.no_grad():
        want = reference(x, _causal(case.heads.window))
        ((_, _, got),) = _calls(lambda *i: list(run(*i)), [case.heads], [x], [[LENGTH]])
    assert difference(want[0], got) > 100 * TOLERANCE


def _causal(window: int | None) -> Tensor:
    distance = torch.arange(LENGTH)[:, None] - torch.arange(LENGTH)
    return (distance >= 0) & (distance < (window or LENGTH))


def _copied(ours: nn.Module, theirs: nn.Module) -> None:
    names = {"query": ("q_proj", "q"), "key": ("k_proj", "k"), "value": ("v_proj", "v")}
    names |= {"out": ("o_proj", "o", "dense")}
    for own, candidates in names.items():
        (source,) = (getattr(theirs, name) for name in candidates if hasattr(theirs, name))
        getattr(ours, own).load_state_dict(source.state_dict())


def _t5(*, is_decoder: bool) -> tuple[Any, RelativePositions]:
    config = transformers.T5Config(
        d_model=WIDTH,
        d_kv=RELATIVE.width,
        num_heads=RELATIVE.count,
        relative_attention_num_buckets=8,
        relative_attention_max_distance=7,  # all kinds of buckets within LENGTH
        is_decoder=is_decoder,
        attn_implementation="eager",
    )
    theirs = T5Attention(config, has_relative_attention_bias=True, layer_idx=0).eval()
    randomise(theirs)
    relative = RelativePositions(RELATIVE.count, 8, 7, is_bidirectional=not is_decoder)
    relative.bias.load_state_dict(theirs.relative_attention_bias.state_dict())
    return theirs, relative


class EncoderLayer(nn.Module):
    """Self-attention with a bias of its own."""

    def __init__(self, attention: SelfAttention, relative: RelativePositions | None) -> None:
        super().__init__()
        self.attention = attention
        self.relative = relative

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        positions = torch.arange(x.shape[1])
        bias = None if self.relative is None else self.relative(positions[None], positions)
        return self.attention(x, lengths, bias)


class EncoderLayers(nn.Module):
    """All of them in one graph."""

    def __init__(self, layers: list[EncoderLayer]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, ...]:
        return tuple(layer(x, lengths) for layer in self.layers)


ENCODERS = {
    f"window {window}, soft cap {soft_cap}": replace(
        NARROW, window=window, soft_cap=soft_cap, scale=10**-0.5
    )
    for window in (None, 3)
    for soft_cap in (None, 2.0)
}
"""Shared key heads, rotated; bidirectional by a mask of the reference's."""
SIZES = (LENGTH, 7, 1)


@pytest.fixture(scope="module")
def encoded(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], float]:
    """(case, form) → the largest difference from `transformers`, relative; padded on the right."""
    layers, wanted = [], []
    torch.manual_seed(0)
    x, lengths = torch.randn(3, LENGTH, WIDTH), torch.tensor(SIZES, dtype=torch.int32)
    distance = (torch.arange(LENGTH)[:, None] - torch.arange(LENGTH)).abs()
    with torch.no_grad():
        theirs, relative = _t5(is_decoder=False)
        layers.append(EncoderLayer(_loaded(RELATIVE, theirs), relative))
        wanted.append([theirs(x[row : row + 1, :size])[0][0] for row, size in enumerate(SIZES)])
        for heads in ENCODERS.values():
            fields = {
                "head_dim": 10,
                "attn_logit_softcapping": heads.soft_cap,
                "query_pre_attn_scalar": 10,
            }
            kinds = (gemma2.Gemma2Attention, gemma2.Gemma2RotaryEmbedding)
            theirs, reference = Case(heads, *kinds, transformers.Gemma2Config, fields).reference()
            layers.append(EncoderLayer(_loaded(heads, theirs), None))
            near = distance < (heads.window or LENGTH)
            wanted.append(
                [
                    reference(x[row : row + 1, :size], near[:size, :size])[0]
                    for row, size in enumerate(SIZES)
                ]
            )
        outputs = tuple(_port(f"y_{index}", "B", "T", WIDTH) for index in range(len(layers)))
        inputs = (_port("x", "B", "T", WIDTH), _port("lengths", "B", dtype="int32"))
        graph = Graph(file="e.onnx", inputs=inputs, outputs=outputs)
        module, folder = EncoderLayers(layers), tmp_path_factory.mktemp("encoders")
        forms: dict[str, Run] = {
            "eager": lambda *inputs: list(module(*inputs)),
            "fused": _exported(module, graph, folder / "fused.onnx", is_fused=True),
        }
        return {
            (name, form): max(
                difference(want, y[row, : len(want)]) for row, want in enumerate(rows)
            )
            for form, run in forms.items()
            for name, rows, y in zip([T5, *ENCODERS], wanted, run(x, lengths), strict=True)
        }


def _loaded(heads: Heads, theirs: nn.Module) -> SelfAttention:
    attention = SelfAttention(heads)
    _copied(attention, theirs)
    return attention


@pytest.mark.slow
@pytest.mark.parametrize("form", ["eager", "fused"])  # with a soft cap "fused" is standard
@pytest.mark.parametrize("name", [T5, *ENCODERS])
def test_encoder_attention_is_that_of_transformers(
    name: str, form: str, encoded: dict[tuple[str, str], float]
) -> None:
    assert encoded[name, form] < TOLERANCE


def test_cross_attention_has_heads_of_any_width() -> None:
    theirs, _ = _t5(is_decoder=True)
    theirs.has_relative_attention_bias = False
    attention = CrossAttention(RELATIVE)
    _copied(attention, theirs)
    torch.manual_seed(0)
    x, source = torch.randn(4, 3, WIDTH), torch.randn(2, 6, WIDTH)
    lengths = torch.tensor([6, 4], dtype=torch.int32)
    with torch.no_grad():
        given = attention(x, attention.project_kv(source), lengths)
        for row in range(4):  # two beams a source
            own = source[row // 2 : row // 2 + 1, : lengths[row // 2]]
            want = theirs(x[row : row + 1], key_value_states=own)[0][0]
            assert difference(want, given[row]) < TOLERANCE


@pytest.mark.slow
def test_layers_of_one_model_share_their_rotary_tables(tmp_path: Path) -> None:
    module = Layers([Layer(CachedAttention(GROUPED), None) for _ in range(3)])
    to_onnx(Lowering(module, module.graph()), tmp_path / "stack.onnx")
    graph = onnx.load(str(tmp_path / "stack.onnx")).graph
    assert [t.dims[:] for t in graph.initializer].count([POSITIONS, 8]) == 2


@pytest.mark.parametrize("size", [1, 2, 5])
def test_score_of_a_pair_is_that_of_its_distance(size: int) -> None:
    scores = torch.randn(2, 3, size, 2 * size - 1, generator=torch.Generator().manual_seed(0))
    placed = by_distance(scores)
    assert placed.shape == (2, 3, size, size)
    for query in range(size):
        for key in range(size):
            want = scores[:, :, query, key - query + size - 1]
            torch.testing.assert_close(placed[:, :, query, key], want, rtol=0, atol=0)
