"""The pairs of languages that the served translators have, and the model of each pair."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from inference.errors import InvalidRequest
from inference.tasks.shared.loaded_model import LoadedModel
from inference.tasks.translate import TASK
from inference.tasks.translation.languages import LanguagePairs

AUTO = "auto"


@dataclass(frozen=True)
class Translators:
    """The served translators that declare their languages.

    Args:
        offers: Each with its directions, the preferred ones first.
    """

    offers: tuple[tuple[LoadedModel, tuple[LanguagePairs, ...]], ...]

    @classmethod
    def among(cls, models: Iterable[LoadedModel]) -> Translators:
        """The translators among these models.

        Of several that have a pair, a default is preferred, then a model of few languages.
        """
        found = [(model, TASK.directions(model)) for model in models if TASK.name in model.sections]
        found.sort(key=lambda offer: (not offer[0].manifest.default, _breadth(offer[1])))
        return cls(tuple(found))

    @property
    def codes(self) -> tuple[str, ...]:
        """All languages, of either side."""
        return tuple(
            sorted({code for each in self._directions() for code in each.sources | each.targets})
        )

    def targets(self, source: str) -> tuple[str, ...]:
        """What a language is translated into, itself included."""
        found = {
            code for each in self._directions() if source in each.sources for code in each.targets
        }
        return tuple(sorted(found | {source}))

    def sources(self, target: str) -> tuple[str, ...]:
        """What is translated into a language, itself included."""
        found = {
            code for each in self._directions() if target in each.targets for code in each.sources
        }
        return tuple(sorted(found | {target}))

    def model(self, source: str, target: str) -> LoadedModel:
        """The model of a pair.

        Raises:
            InvalidRequest: no model has it. Two models that have it together are not joined.
        """
        for model, directions in self.offers:
            if any((source, target) in each for each in directions):
                return model
        targets = ", ".join(code for code in self.targets(source) if code != source) or "none"
        raise InvalidRequest(
            f"target is not available from that source; supported are: {targets}", field="target"
        )

    def resolve(self, code: str, field: str) -> str:
        """The code as it is listed, whatever its case; a region that is not listed is ignored.

        Raises:
            InvalidRequest: the language is not served.
        """
        listed = {known.lower(): known for known in self.codes}
        plain = code.lower().replace("_", "-")
        for form in (code.lower(), plain.partition("-")[0]):
            if form in listed:
                return listed[form]
        known = ", ".join(self.codes) or "none"
        raise InvalidRequest(f"{field} is not supported; supported are: {known}", field=field)

    def _directions(self) -> Iterable[LanguagePairs]:
        return (each for _, directions in self.offers for each in directions)


def _breadth(directions: tuple[LanguagePairs, ...]) -> int:
    return sum(len(each.sources) * len(each.targets) for each in directions)
