"""The gate of lower precisions for CUDA.

It needs no GPU. Float16 graphs run on the CPU provider, which computes in float32 where it has no
float16 kernel and stores float16 in between; bfloat16 graphs are emulated. The kernels of a card
sum in another order, which no gate on the CPU can show.

Each value that is bfloat16 in the graph is rounded to bfloat16 and computed with in float32. CUDA's
kernels sum in float32 and round what they store, so this is what they compute but for the order of
sums.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnx
from onnx import GraphProto, NodeProto, TensorProto, helper, numpy_helper

from export.architecture import Graphs
from export.graphs.external_data import open_graph, save, values
from export.parity.graph_runs import LazySessions, bundle_path, torch_run
from export.parity.judge import worse
from export.parity.parity_inputs import Observation
from export.parity.token_parity import BEAMS, mixed_requests, teacher_forced_score
from export.parity.torch_runner import TorchRunner
from export.parity.verify import ParityError, observe, relative_difference
from export.precision import Precision
from export.quantization.int8_parity import join_numbers, row_cosines, rows_of
from export.targets.cuda.signature import Types, opset_of, value_types
from export.tokenizer.special_token_templates import Framing
from inference.bundle.manifest import Bundle, Manifest
from inference.engine.engine import decode
from inference.engine.runner_factory import make_runner

_BF16 = TensorProto.BFLOAT16


def emulate(source: Path, target: Path) -> None:
    """Writes a graph of float32 values that rounds where `source` has bfloat16.

    Args:
        source: Its bfloat16 inputs and outputs become float32.
    """
    model = open_graph(source)
    typed = list(value_types(model.graph, opset_of(model)))
    for graph, types in typed:
        _round_nodes(graph, types)
        for value in (*graph.input, *graph.output):
            if value.type.tensor_type.elem_type == _BF16:
                value.type.tensor_type.elem_type = TensorProto.FLOAT
        for tensor in graph.initializer:
            if tensor.data_type == _BF16:
                wide = np.asarray(values(tensor, source.parent)).astype(np.float32)
                tensor.CopyFrom(numpy_helper.from_array(wide, tensor.name))
    _place_beside(model, source, target)


def _round_nodes(graph: GraphProto, types: Types) -> None:
    nodes: list[NodeProto] = []
    for node in graph.node:
        _set_attributes(node)
        nodes.append(node)
        for position, name in enumerate(node.output):
            if types.get(name) == "bfloat16":
                raw, rounded = f"{name}_raw", f"{name}_bf16"
                node.output[position] = raw
                nodes.append(helper.make_node("Cast", [raw], [rounded], to=_BF16))
                nodes.append(helper.make_node("Cast", [rounded], [name], to=TensorProto.FLOAT))
    del graph.node[:]
    graph.node.extend(nodes)
    del graph.value_info[:]


def _set_attributes(node: NodeProto) -> None:
    for attribute in node.attribute:
        if node.op_type == "Cast" and attribute.name == "to" and attribute.i == _BF16:
            attribute.i = TensorProto.FLOAT
        elif attribute.type == onnx.AttributeProto.TENSOR and attribute.t.data_type == _BF16:
            wide = numpy_helper.to_array(attribute.t).astype(np.float32)
            attribute.t.CopyFrom(numpy_helper.from_array(wide, attribute.t.name))


def _place_beside(model: onnx.ModelProto, source: Path, target: Path) -> None:
    """Saves a model whose other large weights may lie beside its source."""
    for tensor in model.graph.initializer:
        if tensor.data_location == TensorProto.EXTERNAL:
            tensor.CopyFrom(
                numpy_helper.from_array(np.asarray(values(tensor, source.parent)), tensor.name)
            )
    save(model, target)


def emulated(bundle: Bundle, manifest: Manifest, folder: Path) -> Bundle:
    """A staged bundle's graphs in an empty folder, as float32 graphs that round.

    Args:
        manifest: Of the float32 graphs, whose inputs and outputs these have.
    """
    found = Bundle(folder / manifest.name, manifest)
    for key in manifest.graphs:
        target = bundle_path(found, key)
        target.parent.mkdir(exist_ok=True)
        emulate(bundle_path(bundle, key), target)
    return found


@dataclass(frozen=True)
class Bounds:
    """What a precision may cost, by the kind of model.

    Attributes:
        cosine: Least cosine of one row of scores, states or embeddings with PyTorch's.
        tokens: Least share of greedily generated tokens that are PyTorch's, counted up to the
            first other one; None for models that generate nothing.
        score: Largest loss of a generated text's score under PyTorch, per token in nats, against
            the text that PyTorch generates.
    """

    cosine: float
    tokens: float | None = None
    score: float = 0.0


BOUNDS = {
    ("fp16", "encoder"): Bounds(0.999),
    ("fp16", "transformer"): Bounds(0.999, 0.7, 0.05),
    ("fp16", "recurrent"): Bounds(0.999, 0.7, 0.05),
    ("bf16", "encoder"): Bounds(0.98),
    ("bf16", "transformer"): Bounds(0.98, 0.4, 0.5),
    ("bf16", "recurrent"): Bounds(0.98, 0.4, 0.5),
}
"""Precision and kind → what may be lost."""

HOW = {
    Precision.FP16: "float16 graphs on the CPU",
    Precision.BF16: "bfloat16 graphs emulated on the CPU, which has no bfloat16 kernels",
}


@dataclass
class LowParity:
    """How lowered graphs compare with PyTorch's float32.

    Attributes:
        kind: encoder, transformer or recurrent; `BOUNDS` has the limits of each.
        how: What computed the graphs.
        least_cosine: Of a row of scores, states or embeddings.
        mean_cosine: Over all rows.
        worst_difference: Relative to the largest magnitude of the reference.
        same_best: Share of rows whose most likely token is PyTorch's, after the same tokens.
        equal_tokens: Share of greedily generated tokens that are PyTorch's, up to the first other.
        hypotheses: Texts that were generated, greedily and with beams.
        score_loss: Largest loss of a text's score under PyTorch; negative where all are better.
    """

    precision: str
    kind: str
    how: str
    observations: int = 0
    least_cosine: float = 1.0
    mean_cosine: float = 1.0
    worst_difference: float = 0.0
    same_best: float | None = None
    equal_tokens: float | None = None
    hypotheses: int = 0
    score_loss: float | None = None


def kind_of(manifest: Manifest) -> str:
    """encoder, transformer or recurrent."""
    if manifest.generator is None:
        return "encoder"
    is_recurrent = manifest.graphs["step"].max_tokens_per_call == 1
    return "recurrent" if is_recurrent else "transformer"


def compare_low(
    graphs: Graphs, bundle: Bundle, original: Manifest, precision: Precision
) -> LowParity:
    """Compares a staged bundle's lowered graphs with the modules that they were exported from.

    Args:
        bundle: Its manifest has the types of the files as they are now.
        original: The manifest of the float32 graphs.

    Raises:
        ParityError: more is lost than `BOUNDS` allows; names where.
    """
    kind = kind_of(original)
    parity = LowParity(precision, kind, HOW[precision])
    framing = Framing.of(bundle)
    reference = Bundle(bundle.folder, original)
    wanted = list(observe(graphs, reference, torch_run(graphs), framing))
    with TemporaryDirectory(dir=bundle.folder.parent.parent) as folder:
        if precision is Precision.BF16:
            bundle = emulated(bundle, original, Path(folder))
        run = LazySessions({key: bundle_path(bundle, key) for key in original.graphs})
        given = list(observe(graphs, bundle, run, framing))
        run.close()
        _compare_scores(parity, wanted, given)
        if "step" in graphs.lowerings:
            _compare_texts(parity, graphs, bundle, original)
    return parity


def _compare_scores(
    parity: LowParity, wanted: Sequence[Observation], given: Sequence[Observation]
) -> None:
    bounds = BOUNDS[parity.precision, parity.kind]
    cosines, same = [], []
    for want, got in zip(join_numbers(wanted), join_numbers(given), strict=True):
        a, b = rows_of(want.value), rows_of(got.value)
        found = row_cosines(a, b)
        if not found.min() >= bounds.cosine:  # NaN must fail
            raise ParityError(
                f"{parity.precision} changes {want.place} too much: cosine {found.min():.4f}, "
                f"{bounds.cosine} is required; nothing was published"
            )
        cosines.append(found)
        difference = relative_difference(a.astype(np.float64), b.astype(np.float64))
        parity.worst_difference = worse(parity.worst_difference, difference)
        if want.place.startswith(("step", "prefill", "chunk")) and want.place[-1].isdigit():
            same.append(a.argmax(axis=-1) == b.argmax(axis=-1))
    parity.observations = len(cosines)
    rows = np.concatenate(cosines)
    parity.least_cosine, parity.mean_cosine = float(rows.min()), float(rows.mean())
    parity.same_best = float(np.concatenate(same).mean()) if same else None


def _compare_texts(parity: LowParity, graphs: Graphs, bundle: Bundle, original: Manifest) -> None:
    """Generates with both, through the engine that serves."""
    bounds = BOUNDS[parity.precision, parity.kind]
    reference, runner = TorchRunner(graphs, original), make_runner(bundle)
    losses, equal, total = [], 0, 0
    for beams in BEAMS:
        requests = mixed_requests(original, beams)
        pairs = zip(requests, decode(reference, requests), decode(runner, requests), strict=True)
        for request, want, got in pairs:
            first, other = want.hypotheses[0], got.hypotheses[0]
            if beams == 1:
                equal += _common(first.token_ids, other.token_ids)
                total += len(first.token_ids)
            if first.token_ids == other.token_ids:
                losses.append(0.0)
            else:
                score = teacher_forced_score(reference, request, other.token_ids)
                losses.append(first.score - score)
    runner.close()
    parity.hypotheses, parity.score_loss = len(losses), max(losses)
    parity.equal_tokens = equal / max(total, 1)
    if bounds.tokens is not None and parity.equal_tokens < bounds.tokens:
        raise ParityError(
            f"{parity.precision} generates other tokens than PyTorch: "
            f"{100 * parity.equal_tokens:.0f} % are equal, {100 * bounds.tokens:.0f} % are "
            "required; nothing was published"
        )
    if not parity.score_loss <= bounds.score:
        raise ParityError(
            f"{parity.precision} generates texts that PyTorch scores {parity.score_loss:.3f} nats "
            f"a token lower, {bounds.score} is allowed; nothing was published"
        )


def _common(wanted: Iterable[int], given: Iterable[int]) -> int:
    """Tokens in front of the first difference."""
    count = 0
    for one, other in zip(wanted, given, strict=False):
        if one != other:
            return count
        count += 1
    return count
