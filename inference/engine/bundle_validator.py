"""The validator of a bundle's requests: what it reads of the bundle is read when it is needed."""

from __future__ import annotations

from inference.bundle.manifest import Bundle
from inference.engine.validation import RequestValidator
from inference.errors import InvalidRequest
from inference.processing.grammars import GrammarCompiler
from inference.processing.text import load_tokenizer
from inference.processing.words import WordEdges


def bundle_validator(bundle: Bundle) -> RequestValidator:
    """Checks requests of one bundle; takes phrases and grammars where its tokenizer can."""
    return RequestValidator(
        bundle.manifest, lambda: _word_edges(bundle), GrammarCompiler(bundle).compile_rules
    )


def _word_edges(bundle: Bundle) -> WordEdges:
    """Edges of words in the bundle's vocabulary."""
    tokenizer, size = load_tokenizer(bundle), bundle.manifest.vocabulary_size
    if tokenizer is None or size is None:
        raise InvalidRequest(f"{bundle.manifest.name} has no tokenizer: it takes no phrases")
    return WordEdges.of(tokenizer, size)
