"""Small models for tasks, and bundles small enough to write by hand."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from PIL import Image

from inference.bundle.inputs import ImageSpec, PromptImages, TokenizerSpec
from inference.bundle.manifest import MANIFEST, Graph, Limits, Manifest, Role, SourceInfo, Tensor
from inference.generation import Finished, FinishReason, Generation, Hypothesis, Top
from inference.processing.detokenizer import Detokenizer
from inference.processing.tokenizer import EncodedText
from inference.tasks import TASKS
from inference.tasks.shared.loaded_model import LoadedModel
from inference.tasks.shared.model_calls import InferCall, Outputs
from inference.tasks.shared.served_task import sections_of
from tests.pictures import encoded


def make_manifest(name: str, task: str, graphs: Mapping[str, Graph], **fields: Any) -> Manifest:
    """A manifest; `fields` are further ones, or take the place of those that are here."""
    required = {
        "version": 1,
        "architecture": "toy",
        "precision": "fp32",
        "tasks": {task: {}},
        "source": SourceInfo(name=name, content_hash="0"),
        "parts": {"generate": name},
    }
    return Manifest(name=name, graphs=graphs, **{**required, **fields})


def plain_recipe(size: tuple[int, int], rescale: float = 1.0) -> ImageSpec:
    """Pixels as they are, times a factor."""
    return ImageSpec(
        resize="exact", size=size, resample=2, mean=(0, 0, 0), std=(1, 1, 1), rescale=rescale
    )


def finished(
    sequences: Sequence[Sequence[int]],
    scores: Sequence[float],
    finish_reasons: Sequence[str] = (),
    prompt_tokens: int = 0,
    *,
    log_probs: Sequence[tuple[float, ...]] = (),
    top: Sequence[tuple[Top, ...]] = (),
    alignments: Sequence[NDArray[np.float32]] = (),
) -> Finished:
    """A result with one hypothesis a sequence; what is left out is as if it was not requested."""
    return Finished(
        tuple(
            Hypothesis(
                tuple(ids),
                scores[rank],
                finish_reasons[rank] if finish_reasons else FinishReason.STOP,
                log_probs[rank] if log_probs else (),
                top[rank] if top else (),
                alignments[rank] if alignments else None,
            )
            for rank, ids in enumerate(sequences)
        ),
        prompt_tokens,
    )


Value = tuple[str, int, Sequence[int | str | None]]
"""Name, ONNX element type, shape."""

_RECIPE = plain_recipe((1, 1))


def graph(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[Value],
    outputs: Sequence[Value],
    constants: Sequence[onnx.TensorProto] = (),
    opset: int = 17,
) -> onnx.ModelProto:
    """An ONNX model of standard operators that every Triton of interest can read."""
    body = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info(*value) for value in inputs],
        [helper.make_tensor_value_info(*value) for value in outputs],
        list(constants),
    )
    return _checked_model(body, opset)


def parse_graph(
    text: str, constants: Mapping[str, NDArray[Any]] | None = None, opset: int = 17
) -> onnx.ModelProto:
    """A model of `(inputs) => (outputs) { nodes }` in ONNX's syntax, which read constants too."""
    body = onnx.parser.parse_graph(f"tiny {text}")
    held = (constants or {}).items()
    body.initializer.extend(numpy_helper.from_array(array, name) for name, array in held)
    return _checked_model(body, opset)


def _checked_model(body: onnx.GraphProto, opset: int) -> onnx.ModelProto:
    """With the version of the standard operators, and those of ONNX Runtime that it has."""
    opsets = {"": opset} | {node.domain: 1 for node in body.node if node.domain}
    imports = [helper.make_opsetid(*each) for each in opsets.items()]
    model = helper.make_model(body, opset_imports=imports, ir_version=8)
    onnx.checker.check_model(model)
    return model


def publish(
    repository: Path,
    name: str,
    model: onnx.ModelProto | None,
    config: str,
    *,
    version: int = 1,
    parts: dict[str, str] | None = None,
    complete: bool = True,
) -> Path:
    """Write one version of a bundle; without a manifest when it shall be incomplete."""
    folder = repository / name / str(version)
    folder.mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text(config)
    if model is not None:
        onnx.save(model, folder / "model.onnx")
    if complete:
        graphs = {"image": _embeds(MANIFEST if model is None else "model.onnx")}
        fields = {"version": version, "parts": parts or {"image": name}, "image": _RECIPE}
        manifest = make_manifest(name, "embed", graphs, **fields)
        (folder / MANIFEST).write_text(json.dumps(manifest.model_dump(mode="json")))
    return folder


def _embeds(file: str) -> Graph:
    """What the manifest's task needs; the file's own interface may be another."""
    return Graph(
        file=file,
        inputs=(Tensor(name="x", dtype="uint8", shape=("B", 1, 1, 3), role=Role.PIXELS),),
        outputs=(Tensor(name="y", dtype="float32", shape=("B", 1), role=Role.EMBEDDING),),
    )


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


def picture_reader() -> Manifest:
    """Logits are the mean red, green, and blue times the number of tokens of a text."""
    section = {"labels": ("red", "green", "blue"), "activation": "none"}
    return _stateless("classify", section, {"pair": _graph((_PIXELS, *_TEXT), _logits(3))})


def word_labeller() -> Manifest:
    """A token's logit is 4 for the label of its number modulo the labels, else 0."""
    labels = ("O", "B-a", "I-a", "B-b", "I-b")
    return _stateless("tag", {"labels": labels}, {"text": _graph(_TEXT, _logits("T", len(labels)))})


def cross_encoder(activation: str = "none") -> Manifest:
    """A pair's logit is the sum of its second text's tokens."""
    return _stateless(
        "rerank", {"activation": activation}, {"text": _graph((*_TEXT, _SEGMENTS), _logits(1))}
    )


def passage_reader(null_token_id: int | None = 2, **section: object) -> Manifest:
    """A token's logits are its number modulo 5, of start, and modulo 3, of end.

    The separator of a pair is the token of the null answer.
    """
    logits = _logits("T", 2)
    found = {"null_token_id": null_token_id, **section}
    return _stateless("answer", found, {"text": _graph((*_TEXT, _SEGMENTS), logits)})


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
        logits = pixels.mean(axis=(1, 2))
        if "lengths" in call.inputs:
            logits[:, 2] *= call.inputs["lengths"]
        return {Role.LOGITS: logits}
    tokens, lengths = call.inputs["token_ids"], call.inputs["lengths"]
    inside = np.arange(tokens.shape[1]) < lengths[:, None]
    if Role.TOP_SCORES in roles or Role.CHOICE_SCORES in roles:
        return _filled(call)
    segments = call.inputs.get("segments")
    if segments is None:
        return {Role.LOGITS: 4.0 * np.eye(5, dtype=np.float32)[tokens % 5]}
    second = (tokens * inside * segments).sum(axis=1) - 1  # without the end token
    if call.model == "tiny-answer":
        return {Role.LOGITS: np.stack([tokens % 5, tokens % 3], axis=-1).astype(np.float32)}
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


class WordTokenizer:
    """A word is a token; 0 pads, 1 ends a text, 2 separates a pair. `##` begins a continuation."""

    def __init__(self) -> None:
        self.words = ["<pad>", "</s>", "<s>"]

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        for word in text.split():
            if word not in self.words:
                self.words.append(word)
        ids = [self.words.index(word) for word in text.split()]
        return [*ids, 1] if add_special_tokens else ids

    def encode_output(self, text: str) -> list[int] | None:
        return self.encode(text, add_special_tokens=False)

    def encode_text(
        self, text: str, second: str | None = None, *, with_offsets: bool = False
    ) -> EncodedText:
        first = self.encode(text, add_special_tokens=False)
        offsets = [match.span() for match in re.finditer(r"\S+", text)]
        if second is None:
            places = [*offsets, (0, 0)] if with_offsets else ()
            whole = [*first, 1]
            return EncodedText(whole, [0] * len(whole), [*[0] * len(first), None], places)
        other = self.encode(second, add_special_tokens=False)
        others = [match.span() for match in re.finditer(r"\S+", second)]
        return EncodedText(
            [*first, 2, *other, 1],
            [0] * (len(first) + 1) + [1] * (len(other) + 1),
            [*[0] * len(first), None, *[1] * len(other), None],
            [*offsets, (0, 0), *others, (0, 0)] if with_offsets else (),
        )

    def continues(self, text: str, encoded: EncodedText) -> list[bool]:
        return [self.words[number].startswith("##") for number in encoded.ids]

    def token_id(self, text: str) -> int | None:
        ids = self.encode(text, add_special_tokens=False)
        return ids[0] if len(ids) == 1 else None

    def render(self, ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        first = 3 if skip_special_tokens else 0
        return " ".join(self.words[number] for number in ids if number >= first)

    def decode(self, ids: Sequence[int]) -> str:
        return " ".join(self.words[number] for number in ids if number > 2)

    def detokenizer(self) -> Detokenizer:
        return Detokenizer(self.decode)

    def pieces(self, ids: Sequence[int], *, of_source: bool = False) -> list[str]:
        known = dict(enumerate(self.words))
        return [known.get(number, f"<{number}>") for number in ids]

    def bytes_of(self, ids: Sequence[int]) -> list[bytes]:
        known = dict(enumerate(self.words[3:], 3))
        return [known.get(number, "").encode() for number in ids]

    def starts(self, text: str) -> tuple[Sequence[int], Sequence[int]]:
        encoded = self.encode_text(text, with_offsets=True)
        return encoded.ids, [*(start for start, _ in encoded.offsets[:-1]), len(text)]


STEP = Graph(file="step.onnx", inputs=(), outputs=())
EMBEDDING = (Tensor(name="embedding", dtype="float32", shape=("B", 3), role=Role.EMBEDDING),)
TOWERS = {
    "image": Graph(
        file="model.onnx",
        inputs=(Tensor(name="pixels", dtype="uint8", shape=("B", 4, 4, 3), role=Role.PIXELS),),
        outputs=EMBEDDING,
    ),
    "text": Graph(
        file="model.onnx",
        inputs=(
            Tensor(name="token_ids", dtype="int64", shape=("B", "T"), role=Role.TOKENS),
            Tensor(name="lengths", dtype="int32", shape=("B",), role=Role.LENGTHS),
        ),
        outputs=EMBEDDING,
    ),
}


def manifest(task: str, section: dict[str, object] | None = None, **fields: object) -> Manifest:
    """A generator's manifest, unless `fields` give other graphs.

    Args:
        section: What the manifest holds for the task.
    """
    defaults: dict[str, object] = {
        "name": f"tiny-{task}",
        "version": 3,
        "tasks": {task: section or {}},
        "graphs": {"step": STEP},
        "generation": Generation(pad_token_id=0, max_new_tokens=20, num_beams=2),
        "limits": Limits(max_input_tokens=12, max_total_tokens=16),
        "tokenizer": TokenizerSpec(kind="tokenizers", pad_token_id=0, files={}),
    }
    return make_manifest(task=task, **{**defaults, **fields})


IMAGE = plain_recipe((4, 4), 1 / 255)


def two_towers() -> Manifest:
    """Image and text parts with embeddings in one space."""
    return manifest(
        "zero-shot",
        {"logit_scale": 10.0},
        image=IMAGE,
        parts={"image": "tiny-zero-shot", "text": "tiny-zero-shot-text"},
        graphs=TOWERS,
        generation=None,
    )


def video_classifier() -> Manifest:
    """Videos of three frames, which change the vectors of texts."""
    towers = two_towers()
    names = {"patches": (1, Role.HIDDEN), "texts": ("K", Role.CONDITIONS)}
    patches, texts = (
        Tensor(name=name, dtype="float32", shape=("B", size, 3), role=role)
        for name, (size, role) in names.items()
    )
    image = TOWERS["image"]
    video = image.inputs[0].model_copy(update={"shape": ("B", 3, 4, 4, 3)})
    changed = EMBEDDING[0].model_copy(update={"shape": texts.shape})
    graphs = {
        "image": image.model_copy(update={"inputs": (video,), "outputs": (*EMBEDDING, patches)}),
        "text": TOWERS["text"],
        "labels": Graph(file="model.onnx", inputs=(patches, texts), outputs=(changed,)),
    }
    sections = {"zero-shot": {"logit_scale": 10.0, "templates": ["{}"]}, "embed": {}}
    parts = {**towers.parts, "labels": "tiny-zero-shot-labels"}
    return towers.model_copy(update={"tasks": sections, "parts": parts, "graphs": graphs})


def detector() -> Manifest:
    """Two regions of an image, and texts in the space of their vectors."""
    found = (
        ("boxes", (4,), Role.BOXES),
        ("regions", (3,), Role.REGIONS),
        ("biases", (), Role.REGION_BIASES),
    )
    outputs = tuple(
        Tensor(name=name, dtype="float32", shape=("B", 2, *last), role=role)
        for name, last, role in found
    )
    return _beside_texts("detect", TOWERS["image"].model_copy(update={"outputs": outputs}))


def _beside_texts(task: str, image: Graph) -> Manifest:
    """The part of images of this task, and the part of texts of `two_towers`."""
    name = f"tiny-{task}"
    parts, graphs = {"image": name, "text": f"{name}-text"}, {**TOWERS, "image": image}
    update = {"name": name, "tasks": {task: {}}, "parts": parts, "graphs": graphs}
    return two_towers().model_copy(update=update)


def box_writer() -> LoadedModel:
    """A generator whose answers have boxes, as words."""
    tokenizer = WordTokenizer()
    tokenizer.encode("<image>")
    sentences = {"<all>": "find all", "<some>": "find {input} here"}
    images = {"place": "<image>", "is_leading": True, "sentences": sentences}
    section = {"images": images, "prompt": "<all>", "labelled": "<some>", "ignored": ["it"]}
    tokens = Tensor(name="s", dtype="int64", shape=("B", "S"), role=Role.SOURCE_TOKENS)
    described = manifest(
        "detect",
        section,
        image=IMAGE,
        graphs={"admit": Graph(file="admit.onnx", inputs=(tokens,), outputs=()), "step": STEP},
        source_image=PromptImages(positions=2, token_id=3, tokens=2),
    )
    return served(described, tokenizer)


def segmenter() -> Manifest:
    """Masks of 2 x 3 pixels, and texts in the space of their conditions."""
    conditions = Tensor(name="texts", dtype="float32", shape=("B", "K", 3), role=Role.CONDITIONS)
    masks = Tensor(name="masks", dtype="float32", shape=("B", "K", 2, 3), role=Role.MASKS)
    image = TOWERS["image"]
    update = {"inputs": (*image.inputs, conditions), "outputs": (masks,)}
    return _beside_texts("segment", image.model_copy(update=update))


def served(described: Manifest, tokenizer: WordTokenizer | None = None) -> LoadedModel:
    """A manifest loaded without files."""
    return LoadedModel(described, sections_of(described, TASKS), tokenizer or WordTokenizer())


def image_file(colour: str, kind: str = "PNG") -> bytes:
    return encoded(Image.new("RGB", (6, 5), colour), kind)


def embedded(array: np.ndarray) -> np.ndarray:
    """Rows as unit vectors, float32."""
    return (array / np.linalg.norm(array, axis=-1, keepdims=True)).astype(np.float32)
