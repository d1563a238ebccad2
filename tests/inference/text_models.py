"""Text models of one part for tasks: words are tokens, graphs are functions of token ids."""

from collections.abc import Sequence

import numpy as np

from inference.bundle.manifest import Graph, Manifest, Role, Tensor
from inference.tasks.shared.model_calls import InferCall, Outputs
from tests.inference.tiny_models import IMAGE, manifest

_TEXT = (
    Tensor(name="token_ids", dtype="int64", shape=("B", "T"), role=Role.TOKENS),
    Tensor(name="lengths", dtype="int32", shape=("B",), role=Role.LENGTHS),
)
_SEGMENTS = Tensor(name="segments", dtype="int64", shape=("B", "T"), role=Role.SEGMENTS)
_PIXELS = Tensor(name="pixels", dtype="uint8", shape=("B", 4, 4, 3), role=Role.PIXELS)
_MASKS = (
    Tensor(name="positions", dtype="int64", shape=("B", "M"), role=Role.POSITIONS),
    Tensor(name="choices", dtype="int64", shape=("B", "N"), role=Role.CHOICES),
)
TOP_K = 6
"""Tokens that the graph of `mask_filler` returns for a mask."""


def _logits(*shape: int | str) -> Tensor:
    return Tensor(name="logits", dtype="float32", shape=("B", *shape), role=Role.LOGITS)


def _graph(inputs: Sequence[Tensor], *outputs: Tensor) -> Graph:
    return Graph(file="model.onnx", inputs=tuple(inputs), outputs=outputs)


def _stateless(task: str, section: dict[str, object], graphs: dict[str, Graph]) -> Manifest:
    name = f"tiny-{task}"
    parts = {key: name if not place else f"{name}-{key}" for place, key in enumerate(graphs)}
    image = IMAGE if any(graph.input(Role.PIXELS) for graph in graphs.values()) else None
    return manifest(task, section, graphs=graphs, parts=parts, generation=None, image=image)


def text_classifier(
    labels: Sequence[str] = ("x", "y", "z"), activation: str = "softmax", pairs: str = "optional"
) -> Manifest:
    """Logits: the first token, the number of tokens, the sum of the segments."""
    section = {"labels": tuple(labels), "activation": activation, "pairs": pairs}
    return _stateless(
        "classify", section, {"text": _graph((*_TEXT, _SEGMENTS), _logits(len(labels)))}
    )


def image_classifier(*, attention: bool = True) -> Manifest:
    """Logits are the mean red, green and blue; attention is a map of 2 x 2 patches."""
    section = {"labels": ("red", "green", "blue"), "activation": "none"}
    graphs = {"image": _graph((_PIXELS,), _logits(3))}
    if attention:
        weights = Tensor(name="attention", dtype="float32", shape=("B", 2, 2), role=Role.ATTENTION)
        graphs["attention"] = _graph((_PIXELS,), weights)
    return _stateless("classify", section, graphs)


def word_labeller() -> Manifest:
    """A token's logit is 4 for the label of its number modulo the labels, else 0."""
    labels = ("O", "B-a", "I-a", "B-b", "I-b")
    return _stateless("tag", {"labels": labels}, {"text": _graph(_TEXT, _logits("T", len(labels)))})


def cross_encoder(activation: str = "none") -> Manifest:
    """A pair's logit is the sum of its second text's tokens."""
    return _stateless(
        "rerank", {"activation": activation}, {"text": _graph((*_TEXT, _SEGMENTS), _logits(1))}
    )


def mask_filler(mask_token: str = "?") -> Manifest:
    """Token 3 + i is the i-th best at every mask."""
    top = Tensor(name="top_tokens", dtype="int64", shape=("B", "M", TOP_K), role=Role.TOP_TOKENS)
    scores = Tensor(
        name="top_scores", dtype="float32", shape=("B", "M", TOP_K), role=Role.TOP_SCORES
    )
    chosen = Tensor(
        name="choice_scores", dtype="float32", shape=("B", "M", "N"), role=Role.CHOICE_SCORES
    )
    section = {"mask_token": mask_token, "mask_token_id": 3}
    return _stateless(
        "fill-mask", section, {"text": _graph((*_TEXT, *_MASKS), top, scores, chosen)}
    )


def run(call: InferCall) -> Outputs:
    """What the graph of one of these models returns."""
    (*roles,) = call.outputs.values()
    if "pixels" in call.inputs:
        pixels = call.inputs["pixels"].astype(np.float32) / 255
        if roles == [Role.ATTENTION]:
            weights = pixels.mean(axis=3).reshape(-1, 2, 2, 2, 2).mean(axis=(2, 4)) + 0.5
            return {Role.ATTENTION: weights / weights.sum(axis=(1, 2), keepdims=True)}
        if roles == [Role.MASKS]:  # each text's first two numbers, and the image's red
            rows = np.stack([*call.inputs["texts"].T[:2]], axis=-1).swapaxes(0, 1)  # (B, K, 2)
            red = pixels[..., 0].mean(axis=(1, 2))[:, None, None, None]
            return {Role.MASKS: (rows[..., None] + red).repeat(3, axis=3)}
        if Role.BOXES in roles:
            colour = pixels.mean(axis=(1, 2))
            return {
                Role.BOXES: np.full((len(pixels), 2, 4), 0.5, np.float32),
                Role.REGIONS: np.stack([colour, -colour], axis=1),
                Role.REGION_BIASES: np.zeros((len(pixels), 2), np.float32),
            }
        return {Role.LOGITS: pixels.mean(axis=(1, 2))}
    tokens, lengths = call.inputs["token_ids"], call.inputs["lengths"]
    inside = np.arange(tokens.shape[1]) < lengths[:, None]
    if Role.TOP_SCORES in roles or Role.CHOICE_SCORES in roles:
        return _filled(call)
    segments = call.inputs.get("segments")
    if segments is None:
        return {Role.LOGITS: 4.0 * np.eye(5, dtype=np.float32)[tokens % 5]}
    second = (tokens * inside * segments).sum(axis=1) - 1  # without the end token
    if call.model == "tiny-rerank":
        return {Role.LOGITS: second[:, None].astype(np.float32)}
    columns = (tokens[:, 0], lengths, segments.sum(axis=1))
    return {Role.LOGITS: np.stack(columns, axis=1).astype(np.float32)}


def _filled(call: InferCall) -> Outputs:
    shape = call.inputs["positions"].shape
    best = np.broadcast_to(np.arange(TOP_K) + 3, (*shape, TOP_K))
    scores = np.broadcast_to(0.5 ** np.arange(1, TOP_K + 1), best.shape)
    choices = call.inputs["choices"][:, None, :] / 100 + 0 * call.inputs["positions"][..., None]
    return {
        Role.TOP_TOKENS: best,
        Role.TOP_SCORES: scores.astype(np.float32),
        Role.CHOICE_SCORES: choices.astype(np.float32),
    }
