"""Any number of texts through the service, in requests of the size that it takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from serving.errors import ServingError
from serving.gateway.answers import TaskRequest
from serving.gateway.dialects.libretranslate.errors import refused
from serving.gateway.dialects.whole_requests import first_error
from serving.gateway.service import Service
from serving.planning.loaded_model import LoadedModel
from serving.tasks.translate import TASK
from triptych.tasks.translate import TranslateRequest, Translation


@dataclass(frozen=True)
class Translator:
    """One model in one direction; it is None where both languages are the same.

    Attributes:
        service: Serves the model.
        route: Label of the metrics.
        name: What the request calls its texts, for errors.
        model: The model.
        source: Language of the texts.
        target: Language to translate into.
    """

    service: Service
    route: str
    name: str
    model: LoadedModel | None
    source: str
    target: str

    async def hypotheses(self, texts: Sequence[str], further: int = 0) -> list[list[str]]:
        """Translations of each text, best first; a text without a letter is its own only one.

        Args:
            texts: The texts.
            further: Number of translations beside the best.

        Raises:
            InvalidRequest: a text cannot be translated: it names that text.
            ServingError: the service cannot.
        """
        results = [[text] for text in texts]
        if self.model is None:
            return results
        places = [place for place, text in enumerate(texts) if any(map(str.isalpha, text))]
        size = self.service.settings.max_client_batch_size
        for first in range(0, len(places), size):
            batch = places[first : first + size]
            named = batch if len(texts) > 1 else []
            items = await self._items([texts[place] for place in batch], further, named)
            for place, item in zip(batch, items, strict=True):
                results[place] = _distinct(item)
        return results

    async def _items(
        self, texts: list[str], further: int, places: list[int]
    ) -> Sequence[Translation]:
        assert self.model is not None
        message = TranslateRequest(
            model=self.model.name,
            texts=texts,
            source=self.source,
            target=self.target,
            alternatives=further + 1 if further else None,
            num_beams=max(further + 1, self.model.generation.num_beams) if further else None,
        )
        try:
            answer = await self.service.answer(TaskRequest(TASK, message, self.route))
        except ServingError as error:
            if error.field is None:
                raise
            raise refused(error, self.name, places) from None
        failure = first_error(answer.response.data)
        if failure is not None:
            raise refused(failure, self.name, places)
        return answer.response.data


def _distinct(item: Translation) -> list[str]:
    """The best translation and the others that differ from it and from each other."""
    found = [item.text or "", *(one.text for one in item.alternatives or ())]
    return list(dict.fromkeys(found))
