"""A text encoder with its head: what the model files of encoders build.

Legend: B batch, T positions, M masked positions, D width, E width of the embedding table, V
vocabulary, C classes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

from torch import Tensor, nn

from export.layers.activation import activation
from export.text_encoders.heads import HeadConfig, HeadKind
from export.text_encoders.pooling import Pooling, first
from export.tokenizer.tokenizer import TokenizerFiles, marks_single_texts
from inference.errors import CheckpointError


class TextEncoder(nn.Module):
    """Base of encoders: tokens → one vector a token, or a fixed number of latent vectors.

    Attributes:
        width: D.
        tokens: The embedding table (V, E).
        segment_types: Segments that the network distinguishes; up to 1, it reads none.
        marks_single_texts: Whether even a single text has several segments (XLNet).
    """

    marks_single_texts: ClassVar[bool] = False
    width: int
    tokens: nn.Embedding
    segment_types: int = 0

    def forward(self, token_ids: Tensor, lengths: Tensor, segments: Tensor | None = None) -> Tensor:
        """(B, T) right-padded, (B,), (B, T) → (B, T, D); without segments, all are 0."""
        raise NotImplementedError

    def vectors_at(self, hidden: Tensor, positions: Tensor) -> Tensor:
        """What `forward` returned, and (B, M) → the vectors at those positions, (B, M, D)."""
        return hidden.gather(1, positions[..., None].expand(-1, -1, hidden.shape[-1]))

    def first(self, token_ids: Tensor, lengths: Tensor, segments: Tensor | None = None) -> Tensor:
        """The first token's vector, (B, 1, D), for heads that read no other."""
        vectors: Tensor = self(token_ids, lengths, segments)
        return vectors[:, :1]


class MaskedTokens(nn.Module):
    """Scores of the vocabulary at some positions (Devlin et al. 2018, §3.1, "Masked LM").

    Args:
        table: Scores are products with its rows where the head is tied.
        norm_epsilon: Of the norm behind the hidden layer.
    """

    def __init__(
        self,
        table: nn.Embedding,
        width: int,
        activation_name: str,
        norm_epsilon: float,
        *,
        is_tied: bool,
    ) -> None:
        super().__init__()
        self.dense = nn.Linear(width, table.embedding_dim)
        self.activation = activation(activation_name)
        self.norm = nn.LayerNorm(table.embedding_dim, eps=norm_epsilon)
        self.output = nn.Linear(table.embedding_dim, table.num_embeddings)
        if is_tied:
            self.output.weight = table.weight

    def forward(self, hidden: Tensor) -> Tensor:
        """(N, D) → logits (N, V)."""
        return self.output(self.norm(self.activation(self.dense(hidden))))


class SequenceClassifier(nn.Module):
    """Scores of a text's classes, from one vector and a hidden layer.

    Args:
        hidden_activation: Of the hidden layer; None: there is no such layer.
        pool: (B, T, D), (B,) → (B, D).
    """

    def __init__(
        self,
        width: int,
        classes: int,
        hidden_activation: str | None,
        pool: Callable[[Tensor, Tensor], Tensor] = first,
    ) -> None:
        super().__init__()
        self.pool = pool
        self.has_hidden_layer = hidden_activation is not None
        if hidden_activation is not None:
            self.dense = nn.Linear(width, width)
            self.activation = activation(hidden_activation)
        self.output = nn.Linear(width, classes)

    @property
    def reads_first(self) -> bool:
        """Whether the first token's vector is enough."""
        return self.pool is first

    def forward(self, hidden: Tensor, lengths: Tensor) -> Tensor:
        """(B, T, D), (B,) → logits (B, C)."""
        x = self.pool(hidden, lengths)
        if self.has_hidden_layer:
            x = self.activation(self.dense(x))
        return self.output(x)


class TextModel(nn.Module):
    """An encoder and the modules of its head.

    Args:
        masked: Makes the scores of the vocabulary.
        classifier: Makes the classifier, given the number of classes.
        tagger: The same for the classes of each token; a linear layer when not given.

    Attributes:
        pooling: Of a bare encoder; its checkpoint may replace it.
    """

    encoder: TextEncoder
    pooling: Pooling

    def __init__(
        self,
        encoder: TextEncoder,
        head: HeadConfig,
        *,
        masked: Callable[[], nn.Module],
        classifier: Callable[[int], nn.Module],
        tagger: Callable[[int], nn.Module] | None = None,
    ) -> None:
        super().__init__()
        self.head = head
        self.encoder = encoder
        if head.fills_masks:
            self.masked = masked()
        if head.classifies:
            self.classifier = classifier(len(head.labels))
        if head.scores_tokens:
            made = partial(nn.Linear, encoder.width) if tagger is None else tagger
            self.tagger = made(len(head.labels))
        if head.kind is HeadKind.BARE:
            self.pooling = Pooling()


def with_heads(
    encoder: TextEncoder,
    config: Any,
    classifier_activation: str,
    masked_activation: str | None = None,
) -> TextModel:
    """An encoder with BERT's heads, whose hidden layers differ by family in their activation.

    Args:
        config: The family's: has `head`, `activation` and `norm_epsilon`, of the encoder's layers.
        masked_activation: Of the head for masked words; by default that of the encoder's layers.
    """
    return TextModel(
        encoder,
        config.head,
        masked=lambda: MaskedTokens(
            encoder.tokens,
            encoder.width,
            masked_activation or config.activation,
            config.norm_epsilon,
            is_tied=config.head.is_tied,
        ),
        classifier=lambda classes: SequenceClassifier(
            encoder.width, classes, classifier_activation
        ),
    )


def check_segments(network: nn.Module, files: TokenizerFiles) -> None:
    """Segments are an input of graphs for single texts only where the network needs them.

    Raises:
        CheckpointError: the tokenizer puts tokens of a single text into a segment other than 0,
            which `transformers` would pass to the network.
    """
    if not isinstance(network, TextModel) or network.encoder.marks_single_texts:
        return
    if network.encoder.segment_types > 1 and marks_single_texts(files):
        raise CheckpointError(
            "the tokenizer puts tokens of a single text into a segment other than 0, which only "
            "XLNet's graphs read: change the type ids of the post-processor in tokenizer.json"
        )
