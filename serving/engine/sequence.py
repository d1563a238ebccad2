"""One request's life in the engine: waiting, running, and its one reason for ending."""

from __future__ import annotations

from serving.engine.beam import BeamSearch
from serving.engine.greedy import GreedySearch
from serving.engine.request import Cancelled, Event, Failed, Finished, Listener, Piece, Request
from serving.engine.runner import Candidates
from serving.engine.search import Advance, Search
from serving.errors import DeadlineExceeded, InvalidRequest


class Sequence:
    """A request, its search and its listener. The engine's thread owns it; `cancel` is for all.

    Attributes:
        next_ids: The token that each of its rows takes at the next step, (width,).
        generated: Tokens chosen so far, per beam.
    """

    def __init__(self, request: Request, listener: Listener) -> None:
        self.request = request
        self.width = request.rules.num_beams
        self.next_ids: tuple[int, ...] = ()
        self.generated = 0
        self._listener = listener
        self._search: Search = BeamSearch(request) if self.width > 1 else GreedySearch(request)
        self._is_cancelled = False
        self._has_ended = False

    @property
    def candidates_needed(self) -> int:
        """Candidates that each of its rows needs at the next step."""
        return self._search.candidates_needed

    def cancel(self) -> None:
        """Asks for the end, from any thread; takes effect before the next step."""
        self._is_cancelled = True

    def ending(self, now_s: float) -> Event | None:
        """Why the sequence must end before the next step, if it must."""
        if self._is_cancelled:
            return Cancelled()
        deadline_s = self.request.deadline_s
        if deadline_s is not None and now_s >= deadline_s:
            return Failed(
                DeadlineExceeded(
                    f"the deadline passed after {self.generated} tokens: allow more time, or ask "
                    "for fewer tokens or beams"
                )
            )
        return None

    def advance(self, candidates: Candidates) -> Advance | None:
        """Chooses next tokens and tells the listener; None when the sequence has ended."""
        try:
            advance = self._search.advance(candidates)
        except InvalidRequest as error:
            self.tell(Failed(error))
            return None
        self.generated += 1
        if advance is None:
            self._tell_end()
        else:
            self.next_ids = advance.token_ids
            self._tell_piece(advance.token_ids[0])
        return advance

    def tell(self, event: Event) -> None:
        """Passes an event to the listener, unless it has heard its last."""
        if self._has_ended:
            return
        self._has_ended = not isinstance(event, Piece)
        self._listener(event)

    def _tell_end(self) -> None:
        hypotheses = self._search.hypotheses()
        self._tell_piece(hypotheses[0].token_ids[-1])
        self.tell(Finished(hypotheses, self.request.prompt_tokens))

    def _tell_piece(self, token_id: int) -> None:
        if self.request.stream and self.width == 1:
            self.tell(Piece((token_id,)))
