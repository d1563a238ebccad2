"""The form of a twin: tiny checkpoints of an architecture, and the reference of its network.

A twin is data: `tests/export/twins` has one file for each module of `export/models`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

EXPORTED = "odd"
"""The configuration that every twin has and whose graphs the tests export: sizes that a port would
not assume (head widths that are no multiple of eight, widths that differ everywhere)."""

TINY_TEXT: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 16,
}
"""A small text encoder, in the field names of most families."""
ODD_TEXT: dict[str, Any] = {"hidden_size": 30, "num_attention_heads": 3, "layer_norm_eps": 1e-3}
"""What `EXPORTED` changes in it."""
TINY_IMAGE: dict[str, Any] = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 40,
    "image_size": 32,
    "patch_size": 8,
}
"""A small image encoder, likewise."""
TINY_GPT: dict[str, Any] = {
    "vocab_size": 64,
    "n_positions": 32,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "bos_token_id": 1,
    "eos_token_id": 1,
}
"""A small GPT, in the names of OpenAI's."""
LABELS: dict[str, Any] = {"id2label": {number: f"class {number}" for number in range(9)}}
"""Nine classes."""
ODD_IMAGE: dict[str, Any] = {
    **TINY_IMAGE,
    **LABELS,
    "hidden_size": 30,
    "num_attention_heads": 3,
    "image_size": [28, 42],
    "patch_size": [7, 14],
    "qkv_bias": False,
    "layer_norm_eps": 1e-3,
}
"""`EXPORTED` of image classifiers."""


@dataclass(frozen=True)
class Twin:
    """Tiny checkpoints of one architecture with random weights, and what they must equal.

    Attributes:
        reference: `module:class`. A model class of `transformers`; or, for an architecture that
            `transformers` lacks, the paper written out in PyTorch, called and saved in the same
            way; or in numpy: a class that is called with the checkpoint's tensors and
            `config.json`, with the methods `annotations(source)` → (S, D) and
            `decode(source, tokens)` → logits (T, V) and attention (T, S), all of one row.
        configs: Configuration name → fields of `config.json`; one of them is `EXPORTED`. A
            configuration may name its own `model_type`, where several share the network.
        outputs: Stateless models: graph → the field of the reference's output that it equals.
        references: Configuration → its own `reference`, where a head decides the class.
        images: Configuration → (height, width) that its image recipe gives, where that is not the
            checkpoint's own image size.
        resize: What its image recipe says.
        untied: Configuration → parameters that `transformers` ties as it builds the reference, and
            that this twin has apart, as published checkpoints do.
    """

    reference: str
    configs: Mapping[str, Mapping[str, Any]]
    outputs: Mapping[str, str] = field(default_factory=dict)
    references: Mapping[str, str] = field(default_factory=dict)
    images: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    untied: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    resize: Literal["exact", "patches"] = "exact"

    def __post_init__(self) -> None:
        assert EXPORTED in self.configs, f"a twin needs a configuration called {EXPORTED!r}"

    def reference_of(self, config: str) -> str:
        """The reference of one configuration."""
        return self.references.get(config, self.reference)

    @property
    def is_transformers(self) -> bool:
        """Whether the reference is a class of `transformers`, else a paper written out.

        Some are such a class with an input that a rule of the export gives (`tests.export.twins`).
        """
        return self.reference.startswith(("transformers:", "tests.export.twins."))


def tiny_twin(
    reference: str,
    base: Mapping[str, Any],
    changes: Mapping[str, Mapping[str, Any]],
    references: Mapping[str, str] | None = None,
    untied: Mapping[str, tuple[str, ...]] | None = None,
    heads: Mapping[str, str] | None = None,
    outputs: Mapping[str, str] | None = None,
) -> Twin:
    """A twin of one small configuration, "plain", and of changes to it.

    Args:
        heads: As `references`, of configurations that name the class.
        outputs: As of `Twin`.
    """
    configs = {"plain": base, **{name: {**base, **each} for name, each in changes.items()}}
    heads = heads or {}
    for name, head in heads.items():
        configs[name] = {**configs[name], "architectures": [head.partition(":")[2]]}
    references = {**(references or {}), **heads}
    return Twin(reference, configs, outputs or {}, references, untied=untied or {})


def twin_with_heads(
    configs: Mapping[str, tuple[str, Mapping[str, Any]]],
    outputs: Mapping[str, str] | None = None,
    images: Mapping[str, tuple[int, int]] | None = None,
    module: str = "transformers",
) -> Twin:
    """A twin whose configurations have different heads.

    Args:
        configs: Name → class of the reference and the fields of `config.json`.
        outputs: As of `Twin`, like `images`.
        module: Where the classes are.
    """
    return Twin(
        reference=f"{module}:{configs[EXPORTED][0]}",
        configs={
            name: {**fields, "architectures": [reference]}
            for name, (reference, fields) in configs.items()
        },
        outputs=outputs or {},
        references={name: f"{module}:{reference}" for name, (reference, _) in configs.items()},
        images=images or {},
    )
