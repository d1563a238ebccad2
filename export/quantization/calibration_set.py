"""A user's samples as a bundle's graphs take them: tokenised and resized as the gateway does.

Every fifth sample is held out: no scale is taken from it, and the int8 graphs are compared with
the float32 ones on it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from export.parity.parity_inputs import Feeds, Observation, Run, comparable
from export.quantization.samples import LEAST, Samples, TextSample
from export.tokenizer.special_token_templates import (
    classifies_texts,
    mask_token_id,
    reads_only_pairs,
)
from inference.bundle.manifest import Bundle, Graph, Role
from inference.errors import InvalidRequest, ServingError, SetupError
from inference.processing.image import decode_image, prepare_image
from inference.processing.text import load_tokenizer
from inference.processing.tokenizer import EncodedText
from inference.tasks.shared.loaded_model import CHARACTERS_PER_TOKEN, LoadedModel

HELD_OUT = 5
"""One sample of so many is held out."""
_MASKED = 0.15
"""Share of the words that is masked in texts without a mask (Devlin et al. 2018, §3.1)."""
_UNLIMITED = 1 << 20


@dataclass
class CalibrationSet:
    """Inputs of each graph, one sample a batch.

    Attributes:
        calibration: Graph → samples that scales are taken from.
        held_out: Graph → (place, sample) that the graphs are compared on.
        truncated: Texts that were cut at the model's limit.
    """

    names: tuple[str, ...]
    found: int
    calibration: dict[str, list[Feeds]] = field(default_factory=dict)
    held_out: dict[str, list[tuple[str, Feeds]]] = field(default_factory=dict)
    truncated: int = 0

    @classmethod
    def of(cls, samples: Samples, bundle: Bundle) -> CalibrationSet:
        """The samples as the graphs of a staged bundle take them.

        Raises:
            SetupError: the graphs read something that the samples lack, or an image is damaged.
        """
        model = LoadedModel(bundle.manifest, {}, load_tokenizer(bundle))  # for its tokenizer
        made = cls(samples.names, samples.found)
        for key, graph in bundle.manifest.graphs.items():
            kind = "images" if graph.input(Role.PIXELS) else "texts"
            count = len(samples.images if kind == "images" else samples.texts)
            if count < LEAST:
                had = f"{len(samples.texts)} texts and {len(samples.images)} images"
                raise SetupError(
                    f"--calibration {' '.join(samples.names)} has {had}: {bundle.manifest.name} "
                    f"reads {kind}, and at least {LEAST} are needed"
                )
            made._add(key, graph, samples, model)
        return made

    def observed(self, run: Run, bundle: Bundle) -> Iterator[Observation]:
        """The graphs' outputs for the samples that were held out."""
        manifest = bundle.manifest
        for key, pairs in self.held_out.items():
            graph = manifest.graphs[key]
            for place, feeds in pairs:
                outputs = comparable(graph, run(key, feeds), manifest.source_vocabulary_size or 1)
                for port in graph.outputs:
                    yield Observation(f"{key} {place} {port.name}", outputs[port.name])

    def as_json(self) -> dict[str, Any]:
        """For the report: how many samples, from where."""
        return {
            "from": list(self.names),
            "found": self.found,
            "calibrated": {key: len(feeds) for key, feeds in self.calibration.items()},
            "held_out": {key: len(pairs) for key, pairs in self.held_out.items()},
            "truncated": self.truncated,
        }

    def _add(self, key: str, graph: Graph, samples: Samples, model: LoadedModel) -> None:
        if graph.input(Role.PIXELS):
            given = [
                (path.name.replace(" ", "_"), _image(path, graph, model)) for path in samples.images
            ]
        else:
            given = list(self._text_feeds(graph, samples, model))
        self.held_out[key] = given[HELD_OUT - 1 :: HELD_OUT]
        del given[HELD_OUT - 1 :: HELD_OUT]
        self.calibration[key] = [feeds for _, feeds in given]

    def _text_feeds(
        self, graph: Graph, samples: Samples, model: LoadedModel
    ) -> Iterator[tuple[str, Feeds]]:
        random = np.random.default_rng(0)
        for sample in _readable(samples, graph, model):
            text, is_cut = _encoded(sample, model)
            self.truncated += is_cut
            place = sample.place.replace(" ", "_")  # as the places of observations are
            yield place, text_feeds(text, graph, model, random)


def text_feeds(
    text: EncodedText, graph: Graph, model: LoadedModel, random: np.random.Generator
) -> Feeds:
    """One text as a batch of one, by the roles of a graph's inputs.

    Args:
        random: Chooses the words to mask in texts without a mask.
    """
    ids = np.array(text.ids, np.int64)
    feeds: dict[Role, Any] = {
        Role.LENGTHS: np.array([len(ids)], np.int32),
        Role.SEGMENTS: np.array([text.segments], np.int64),
    }
    if graph.input(Role.POSITIONS):
        positions = _masked_positions(text, ids, model, random)
        feeds[Role.POSITIONS] = positions[None]
        feeds[Role.CHOICES] = ids[positions][None]
        mask = mask_token_id(model.manifest)
        ids[positions] = ids[positions] if mask is None else mask
    padding = model.padding(graph)
    feeds[Role.TOKENS] = padding.padded([ids.tolist()], padding.width or len(ids))
    return {port.name: feeds[port.role] for port in graph.inputs if port.role is not None}


def _masked_positions(
    text: EncodedText, ids: Any, model: LoadedModel, random: np.random.Generator
) -> Any:
    """(M,): the masks of a text, or some of its words."""
    masked = np.flatnonzero(ids == mask_token_id(model.manifest))
    if len(masked):
        return masked
    content = [i for i, sequence in enumerate(text.sequences) if sequence is not None]
    count = max(1, round(_MASKED * len(content)))
    return np.sort(random.choice(content, count, replace=False))


def _readable(samples: Samples, graph: Graph, model: LoadedModel) -> list[TextSample]:
    """Samples as the graph reads texts: the two of a pair one by one where it reads no pairs.

    Raises:
        SetupError: it reads only pairs, and a sample is none.
    """
    if not classifies_texts(graph):
        singles = [(sample, (sample.text, sample.second)) for sample in samples.texts]
        return [
            TextSample(sample.place, text)
            for sample, texts in singles
            for text in texts
            if text is not None and text.strip()
        ]
    single = next((sample for sample in samples.texts if sample.second is None), None)
    if reads_only_pairs(model.manifest) and single is not None:
        raise SetupError(
            f"--calibration {single.place}: {model.name} reads pairs: put a tab between the two "
            "texts (query and document), or use .jsonl with first and second"
        )
    return list(samples.texts)


def _encoded(sample: TextSample, model: LoadedModel) -> tuple[EncodedText, bool]:
    """A sample's tokens, and whether it was cut at the model's limit."""
    limit = model.manifest.limits.max_input_tokens or _UNLIMITED
    embed = model.manifest.tasks.get("embed", {})
    prompt = embed.get("prompts", {}).get(embed.get("default_prompt"), "")
    longest = limit * CHARACTERS_PER_TOKEN
    text, second = (prompt + sample.text)[:longest], sample.second and sample.second[:longest]
    try:
        whole = model.spans.encode_text(text, second)
    except InvalidRequest as error:  # a token without an embedding
        raise SetupError(f"--calibration {sample.place}: {error.message}") from None
    if not whole.ids:
        raise SetupError(f"--calibration {sample.place}: the text has no tokens")
    return whole.truncated(limit), len(whole) > limit


def _image(path: Any, graph: Graph, model: LoadedModel) -> Feeds:
    """One image file as a batch of one.

    Raises:
        SetupError: it cannot be read.
    """
    try:
        pixels = prepare_image(decode_image(path.read_bytes()), model.image)
    except ServingError as error:
        raise SetupError(f"--calibration {path}: {error}") from error
    port = graph.input(Role.PIXELS)
    assert port is not None
    return {port.name: pixels[None]}
