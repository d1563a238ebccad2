"""The worlds of sentences: words, grammars and texts in two to six languages, split for testing."""
