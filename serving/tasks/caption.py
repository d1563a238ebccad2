"""Captioning: one generator call for each picture, beginning with the prompt where there is one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from serving.codec import PIXELS, PROMPT_IDS
from serving.errors import InternalError, TooLong, TriptychError
from serving.processing.detokenizer import Stripping
from serving.processing.image import Pixels
from serving.tasks.alignment import side_by_side, weights_of
from serving.tasks.batch import attempt_each, in_place, unwrap
from serving.tasks.call import GenerateCall, Generated, Outcome
from serving.tasks.model import LoadedModel, TaskLimits
from serving.tasks.picture import Picture, prepare_pictures
from serving.tasks.stream import Part, StreamedItem, Streaming, check_stream
from serving.tasks.tokens import LiveText
from serving.tasks.translate import usage
from triptych.messages import Alternative
from triptych.tasks.caption import Attention, Caption, CaptionRequest, CaptionResponse


@dataclass(frozen=True)
class CaptionPlan:
    """The calls of one request and how their outcomes become its answer."""

    model: LoadedModel
    prompt_ids: tuple[int, ...]
    places: tuple[int | TriptychError, ...]
    """For each picture its call's number, or why it has none."""
    calls: tuple[GenerateCall, ...]
    with_alternatives: bool
    grid: tuple[int, int] | None
    """Rows and columns of patches, where attention was asked for."""

    def finish(self, outcomes: Sequence[Outcome]) -> CaptionResponse:
        """The answer, given one outcome for each call.

        Raises:
            TriptychError: no picture has a caption; the first one's error.
        """

        def captioned(index: int, place: int | TriptychError) -> Caption:
            answer = unwrap(outcomes[unwrap(place)])
            assert isinstance(answer, Generated)
            return self._caption(index, answer)

        results = attempt_each(self.places, captioned)
        return CaptionResponse(
            model=self.model.name,
            data=in_place(results, Caption),
            usage=usage([outcome for outcome in outcomes if isinstance(outcome, Generated)]),
        )

    def streaming(self) -> Streaming:
        """The answer as pieces."""
        items = [
            place if isinstance(place, TriptychError) else StreamedItem((Part(place, self._read),))
            for place in self.places
        ]
        return Streaming(items, self.calls)

    def _read(self) -> LiveText:
        return LiveText(self.model.tokenizer, begins_with=self.prompt_ids, trim=Stripping())

    def _caption(self, index: int, generated: Generated) -> Caption:
        decode = self.model.tokenizer.decode
        hypotheses = [
            Alternative(text=decode([*self.prompt_ids, *sequence]).strip(), score=score)
            for sequence, score in zip(generated.sequences, generated.scores, strict=True)
        ]
        return Caption(
            index=index,
            text=hypotheses[0].text,
            score=hypotheses[0].score,
            alternatives=hypotheses if self.with_alternatives else None,
            attention=self._attention(generated) if self.grid else None,
        )

    def _attention(self, generated: Generated) -> Attention:
        assert self.grid is not None
        return Attention(
            tokens=self.model.tokenizer.pieces(generated.sequences[0]),
            grid=list(self.grid),
            weights=side_by_side([weights_of(generated, last=math.prod(self.grid))]),
        )


def prepare(
    request: CaptionRequest, pictures: Sequence[Picture], model: LoadedModel, limits: TaskLimits
) -> CaptionPlan:
    """A request's calls: one for each readable picture.

    Args:
        request: Its `images` are not read: over multipart and gRPC they are not text.
        pictures: The images, in the request's order.

    Raises:
        InvalidRequest: too many pictures, more alternatives than beams.
        TooLong: the prompt leaves no room for a caption.
        TriptychError: no picture can be read; the first one's error.
    """
    options = model.overrides(
        num_beams=request.num_beams,
        alternatives=request.alternatives,
        max_new_tokens=request.max_new_tokens,
        return_alignment=request.return_attention or None,
        stream=request.stream,
    )
    check_stream(
        request.stream,
        alternatives=request.alternatives,
        return_attention=request.return_attention,
    )
    grid = _grid(model) if request.return_attention else None
    prompt_ids = _prompt_ids(request.prompt or "", model, limits)
    inputs = {PROMPT_IDS: np.array(prompt_ids, dtype=np.int64)} if prompt_ids else {}
    pixels = prepare_pictures(pictures, model, limits)
    calls: list[GenerateCall] = []

    def placed(_: int, picture: Pixels | TriptychError) -> int:
        call = GenerateCall(
            model=model.generator,
            version=model.manifest.version,
            inputs={PIXELS: unwrap(picture), **inputs},
            options=options,
        )
        calls.append(call)
        return len(calls) - 1

    places = attempt_each(pixels, placed)
    alternatives = request.alternatives is not None
    return CaptionPlan(model, tuple(prompt_ids), places, tuple(calls), alternatives, grid)


def _grid(model: LoadedModel) -> tuple[int, int]:
    spec = model.alignment("patches", "return_attention")
    if spec.grid is None:
        raise InternalError(f"{model.name} does not say how its patches lie: export it again")
    return spec.grid


def _prompt_ids(prompt: str, model: LoadedModel, limits: TaskLimits) -> list[int]:
    if not prompt:
        return []
    ids = model.encode(prompt, "prompt", limits, special=False)
    positions = model.manifest.limits.max_total_tokens
    room = None if positions is None else positions - len(model.generation.decoder_start_ids) - 1
    if room is not None and len(ids) > room:
        raise TooLong(
            f"prompt has {len(ids)} tokens, {model.name} takes at most {room}: shorten it",
            field="prompt",
        )
    return ids
