"""The edit of a row's history, made at once."""

from collections.abc import Collection, Sequence

from inference.engine.runners.candidates import Edit
from inference.engine.search.token_history import TokenHistory
from inference.generation import Generation


def edit_after(
    rules: Generation, prompt: Sequence[int], generated: Sequence[int], banned: Collection[int] = ()
) -> Edit:
    """What a search edits after these tokens."""
    history = TokenHistory(rules, prompt)
    for token in generated:
        history.accept(token)
    return history.edit(banned)
