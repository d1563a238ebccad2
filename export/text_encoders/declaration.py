"""What the declarations of all text encoders share: graphs, tasks and sections.

Every graph is the encoder and one head. Pooling, normalisation, softmax and top-k are inside, so
that neither hidden states nor scores of a whole vocabulary leave it.

Legend: B batch, T positions, M masked positions, N chosen tokens, K best tokens, D width, V
vocabulary, C classes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from export.architecture import Architecture, Graphs, Lowering, Section, lower_stateless
from export.checkpoint.checkpoint import SENTENCE_SETTINGS, Checkpoint
from export.config.weight_names import Names, Rename, WeightLayout
from export.text_encoders.heads import HeadConfig, HeadKind
from export.text_encoders.network import TextEncoder, TextModel
from export.tokenizer.tokenizer import class_token_id, mask_token
from inference.bundle.inputs import ImageSpec
from inference.bundle.manifest import Role
from inference.bundle.manifest import Tensor as Port

BEST_TOKENS = 100
"""Most tokens that a masked position can return."""

TEXTS = (
    Port(name="token_ids", dtype="int64", shape=("B", "T"), role=Role.TOKENS),
    Port(name="lengths", dtype="int32", shape=("B",), role=Role.LENGTHS),
)
_SEGMENTS = Port(name="segments", dtype="int64", shape=("B", "T"), role=Role.SEGMENTS)
_POSITIONS = Port(name="positions", dtype="int64", shape=("B", "M"), role=Role.POSITIONS)
_CHOICES = Port(name="choices", dtype="int64", shape=("B", "N"), role=Role.CHOICES)


class Pooled(nn.Module):
    """Texts, or pairs of texts → vectors, or scores of their classes.

    Args:
        head: `reads_first`: whether it reads the first token alone.
    """

    def __init__(self, encoder: TextEncoder, head: nn.Module) -> None:
        super().__init__()
        self.encoder, self.head = encoder, head

    def forward(self, token_ids: Tensor, lengths: Tensor, segments: Tensor | None = None) -> Tensor:
        """(B, T), (B,), (B, T) → (B, D) or logits (B, C)."""
        encode = self.encoder.first if self.head.reads_first else self.encoder
        return self.head(encode(token_ids, lengths, segments), lengths)


class Tagger(nn.Module):
    """Texts, or questions with passages → scores of each token's tags, or of an answer's ends."""

    def __init__(self, model: TextModel) -> None:
        super().__init__()
        self.encoder, self.tagger = model.encoder, model.tagger

    def forward(self, token_ids: Tensor, lengths: Tensor, segments: Tensor | None = None) -> Tensor:
        """(B, T), (B,), (B, T) → logits (B, T, C)."""
        return self.tagger(self.encoder(token_ids, lengths, segments))


class MaskFiller(nn.Module):
    """Texts and positions → the best tokens there, and the probabilities of chosen ones."""

    def __init__(self, model: TextModel) -> None:
        super().__init__()
        self.encoder, self.masked = model.encoder, model.masked
        self.best = min(BEST_TOKENS, model.encoder.tokens.num_embeddings)

    def forward(
        self, token_ids: Tensor, lengths: Tensor, positions: Tensor, choices: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """(B, T), (B,), (B, M), (B, N) → (B, M, K), (B, M, K), (B, M, N).

        Positions are gathered before the product with the vocabulary, which costs more than a
        layer of the encoder.
        """
        hidden = self.encoder(token_ids, lengths)
        at = self.encoder.vectors_at(hidden, positions)
        probabilities = self.masked(at.flatten(0, 1)).softmax(dim=-1).unflatten(0, positions.shape)
        scores, tokens = probabilities.topk(self.best, dim=-1)
        chosen = choices[:, None].expand(-1, positions.shape[1], -1)
        return tokens, scores, probabilities.gather(2, chosen)


def text_graphs(model: TextModel, image: ImageSpec | None = None) -> Graphs:
    """One graph; a head for masked words and sentence relations has a second one, `pair`."""
    head, encoder = model.head, model.encoder
    lowerings: dict[str, Lowering] = {}
    if head.kind is HeadKind.BARE:
        lowerings["text"] = _embedder(model)
    if head.fills_masks:
        lowerings["text"] = _mask_filler(model)
    if head.classifies:
        key = "pair" if lowerings else "text"
        inputs = _inputs(encoder, takes_pairs=True)
        shape = ("B", len(head.labels))
        lowerings[key] = lower_stateless(Pooled(encoder, model.classifier), inputs, _logits(shape))
    if head.scores_tokens:
        inputs = _inputs(encoder, takes_pairs=head.kind is HeadKind.ANSWER)
        lowerings["text"] = lower_stateless(
            Tagger(model), inputs, _logits(("B", "T", len(head.labels)))
        )
    suffixes = {"text": "", "pair": "-pair"}
    parts = {part: suffixes[part] for part in lowerings}
    return Graphs(lowerings, parts=parts, source_vocabulary=encoder.tokens.num_embeddings)


def _embedder(model: TextModel) -> Lowering:
    encoder, pooling = model.encoder, model.pooling
    width = pooling.output_width(encoder.width)
    port = Port(name="embedding", dtype="float32", shape=("B", width), role=Role.EMBEDDING)
    return lower_stateless(Pooled(encoder, pooling), _inputs(encoder, takes_pairs=False), port)


def _mask_filler(model: TextModel) -> Lowering:
    filler = MaskFiller(model)
    best = ("B", "M", filler.best)
    return lower_stateless(
        filler,
        (*TEXTS, _POSITIONS, _CHOICES),
        Port(name="top_tokens", dtype="int64", shape=best, role=Role.TOP_TOKENS),
        Port(name="top_scores", dtype="float32", shape=best, role=Role.TOP_SCORES),
        Port(name="choice_scores", dtype="float32", shape=("B", "M", "N"), role=Role.CHOICE_SCORES),
    )


def _inputs(encoder: TextEncoder, *, takes_pairs: bool) -> tuple[Port, ...]:
    """Segments are an input only where they can differ: a single text's are all 0."""
    has_segments = encoder.segment_types > 1 and (takes_pairs or encoder.marks_single_texts)
    return (*TEXTS, _SEGMENTS) if has_segments else TEXTS


def _logits(shape: tuple[int | str, ...]) -> Port:
    return Port(name="logits", dtype="float32", shape=shape, role=Role.LOGITS)


def embed_section(model: TextModel, checkpoint: Checkpoint) -> dict[str, Any]:
    """Pooling, length and prompts."""
    settings = checkpoint.json(SENTENCE_SETTINGS)
    prompts, default = settings.get("prompts") or {}, settings.get("default_prompt_name")
    return {
        "is_normalized": model.pooling.is_normalized,
        "pooling": "+".join(model.pooling.modes),
        "prompts": dict(prompts),
        "default_prompt": default if default in prompts else None,
    }


def fill_mask_section(model: TextModel, checkpoint: Checkpoint) -> dict[str, Any]:
    """The mask token and its id."""
    token, index = mask_token(checkpoint)
    return {"mask_token": token, "mask_token_id": index}


def classify_section(model: TextModel, checkpoint: Checkpoint) -> dict[str, Any]:
    """Labels and how logits become scores."""
    pairs = "required" if model.head.relates_sentences else "optional"
    labels, activation = model.head.labels, model.head.activation
    return {"labels": labels, "activation": activation, "pairs": pairs}


def tag_section(model: TextModel, checkpoint: Checkpoint) -> dict[str, Any]:
    """The tags."""
    return {"labels": model.head.labels}


def answer_section(model: TextModel, checkpoint: Checkpoint) -> dict[str, Any]:
    """The token of the null answer: that of classes, if the tokenizer has one."""
    return {"null_token_id": class_token_id(checkpoint)}


def rerank_section(model: TextModel, checkpoint: Checkpoint) -> dict[str, Any]:
    """How a logit becomes a relevance score."""
    return {"activation": model.head.rerank_activation}


TASKS: dict[str, Section] = {
    "embed": embed_section,
    "fill-mask": fill_mask_section,
    "classify": classify_section,
    "tag": tag_section,
    "rerank": rerank_section,
    "answer": answer_section,
}


def masked_names(head: HeadConfig, dense: str, norm: str, output: str, bias: str = "") -> Names:
    """The table of a masked-word head, whose tensors are skipped where another head is exported.

    Args:
        bias: A second name of the output's bias, if it has one. An untied head of `transformers` 5
            has both and uses the output's; of tied and of older ones, one name is in the file.
    """
    table: Names = {dense: "masked.dense", norm: "masked.norm", output: "masked.output"}
    if bias:
        table[bias] = WeightLayout(("masked.output.bias",), is_spare=True)
    return table if head.fills_masks else dict.fromkeys(table)


def class_names(head: HeadConfig, output: str = "classifier", dense: str | None = None) -> Names:
    """The table of a head for classes of texts or of tokens or for answers, if that is the head.

    Args:
        output: The checkpoint's name of a text classifier's last layer; a tagger's is `classifier`.
        dense: Its name of the hidden layer.
    """
    if head.kind is HeadKind.TOKENS:
        return {"classifier": "tagger"}
    if head.kind is HeadKind.ANSWER:
        return {"qa_outputs": "tagger"}
    if head.kind is not HeadKind.SEQUENCE:
        return {}
    hidden: Names = {} if dense is None else {dense: "classifier.dense"}
    return {**hidden, output: "classifier.output"}


def text_architecture(
    name: str,
    read_config: Callable[[Mapping[str, Any]], Any],
    build: Callable[[Any], TextModel],
    rename: Callable[[Any], Rename],
) -> Architecture:
    """The declaration of a text encoder: its tasks follow from `config.head`."""
    return Architecture(
        name=name,
        tasks=TASKS,
        read_config=read_config,
        build=build,
        rename=rename,
        graphs=text_graphs,
        tasks_of=lambda config: config.head.tasks,
    )
