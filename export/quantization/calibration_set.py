"""A user's samples for calibration, as a bundle's graphs take them.

Every fifth sample is held out: no scale is taken from it, and the int8 graphs are compared with
the float32 ones on it.

A file has one text a line, a pair with a tab between its texts; lines of a `.jsonl` file have
`text`, or `first` and `second`. A folder has images, and perhaps such files, at any depth. For a
model that reads a detector's regions, `.npz` files take the place of images. A graph that reads an
image with a text gets the first image with the first text, and so on; of the fewer some again.
"""

from __future__ import annotations

import hashlib
import json
from collections import ChainMap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from export.parity.parity_inputs import Feeds, Observation, Run, comparable
from export.tokenizer.special_token_templates import (
    classifies_texts,
    mask_token_id,
    reads_only_pairs,
)
from inference.bundle.manifest import Bundle, Graph, Role
from inference.errors import InvalidRequest, ServingError, SetupError
from inference.processing.image import ImageLimits
from inference.processing.prepared_image import read_image
from inference.processing.tokenizer import EncodedText
from inference.processing.tokenizer_kinds import load_tokenizer
from inference.tasks.shared.loaded_model import CHARACTERS_PER_TOKEN, LoadedModel

IMAGES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp")
REGIONS = (".npz",)
TEXTS = (".txt", ".tsv", ".jsonl")
MOST = 320
"""Texts that are used, and images; of more, as many at equal distances."""
LEAST = 10

Item = TypeVar("Item")


@dataclass(frozen=True)
class TextSample:
    """A text, or a pair of texts.

    Attributes:
        place: File name and line.
    """

    place: str
    text: str
    second: str | None = None


@dataclass(frozen=True)
class Samples:
    """What the named files and folders hold.

    Attributes:
        images: Paths of image files.
        regions: Paths of files of regions.
        names: Names of the files and folders, without the folders that they are in.
        found: All that were there, of which at most `MOST` of each kind are used.
    """

    texts: tuple[TextSample, ...]
    images: tuple[Path, ...]
    regions: tuple[Path, ...]
    names: tuple[str, ...]
    found: int


def read_samples(paths: Sequence[Path]) -> Samples:
    """The texts and images of some files and folders.

    Raises:
        SetupError: a file is missing, empty, or neither text nor an image.
    """
    texts: list[TextSample] = []
    images: list[Path] = []
    regions: list[Path] = []
    for path in _files(paths):
        if path.suffix.lower() in IMAGES:
            images.append(path)
        elif path.suffix.lower() in REGIONS:
            regions.append(path)
        else:
            texts += _texts(path)
    return Samples(
        tuple(_pick_evenly(texts)),
        tuple(_pick_evenly(images)),
        tuple(_pick_evenly(regions)),
        tuple(path.resolve().name for path in paths),
        len(texts) + len(images) + len(regions),
    )


def samples_hash(paths: Sequence[Path]) -> str:
    """SHA-256 over the files' contents, in the order in which they are read.

    Raises:
        SetupError: a file is missing, or a folder has none.
    """
    digest = hashlib.sha256()
    for path in _files(paths):
        digest.update(path.suffix.lower().encode())
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def _files(paths: Iterable[Path]) -> Iterator[Path]:
    for path in paths:
        if not path.exists():
            raise SetupError(f"--calibration {path}: no such file or folder")
        if path.is_file():
            yield path
            continue
        found = sorted(p for p in path.rglob("*") if p.suffix.lower() in IMAGES + REGIONS + TEXTS)
        found = [file for file in found if file.is_file() and not file.name.startswith(".")]
        if not found:
            raise SetupError(
                f"--calibration {path}: the folder has no images ({' '.join(IMAGES)}) and no "
                f"texts ({' '.join(TEXTS)})"
            )
        yield from found


def _texts(path: Path) -> Iterator[TextSample]:
    """The texts of one file; lines that are blank are left out."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        raise SetupError(
            f"--calibration {path}: neither text in UTF-8 nor an image ({' '.join(IMAGES)})"
        ) from None
    number = 0
    for number, line in enumerate(lines, start=1):
        place = f"{path.name}:{number}"
        if not line.strip():
            continue
        if path.suffix.lower() == ".jsonl":
            yield _from_json(line, place)
        else:
            text, tab, second = line.partition("\t")
            yield TextSample(place, text, second if tab else None)
    if not any(line.strip() for line in lines):
        raise SetupError(f"--calibration {path}: the file is empty: give one text a line")


def _from_json(line: str, place: str) -> TextSample:
    """One line of a `.jsonl` file."""
    try:
        fields = json.loads(line)
    except ValueError as error:
        raise SetupError(f"--calibration {place}: not JSON ({error})") from None
    fields = fields if isinstance(fields, dict) else {}
    text, second = fields.get("text", fields.get("first")), fields.get("second")
    if not isinstance(text, str) or not isinstance(second, str | None):
        raise SetupError(
            f'--calibration {place}: expected {{"text": …}} or {{"first": …, "second": …}}'
        )
    return TextSample(place, text, second)


def _pick_evenly(items: Sequence[Item]) -> list[Item]:
    """At most `MOST` of the items, at equal distances."""
    count = min(len(items), MOST)
    return [items[index * len(items) // count] for index in range(count)]


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
        if any(graph.input(Role.CONDITIONS) for graph in bundle.manifest.graphs.values()):
            raise SetupError(
                f"--calibration has no vectors, which {bundle.manifest.name} reads: leave it out"
            )
        model = LoadedModel(bundle.manifest, {}, load_tokenizer(bundle))  # for its tokenizer
        made = cls(samples.names, samples.found)
        for key, graph in bundle.manifest.graphs.items():
            for kind, role in ((_kind_of_pixels(model), Role.PIXELS), ("texts", Role.TOKENS)):
                if graph.input(role) is None or len(getattr(samples, kind)) >= LEAST:
                    continue
                texts, images, regions = map(len, (samples.texts, samples.images, samples.regions))
                had = f"{texts} texts, {images} images and {regions} files of regions"
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
        given = []
        if graph.input(Role.PIXELS):
            paths = getattr(samples, _kind_of_pixels(model))
            given.append([_image(path, graph, model) for path in paths])
        if graph.input(Role.TOKENS):
            given.append(list(self._text_feeds(graph, samples, model)))
        together = zip(*map(cycle, given), strict=True)
        found = [
            (",".join(place for place, _ in each), dict(ChainMap(*(feeds for _, feeds in each))))
            for each in islice(together, max(map(len, given)))
        ]
        self.held_out[key] = found[HELD_OUT - 1 :: HELD_OUT]
        del found[HELD_OUT - 1 :: HELD_OUT]
        self.calibration[key] = [feeds for _, feeds in found]

    def _text_feeds(
        self, graph: Graph, samples: Samples, model: LoadedModel
    ) -> Iterator[tuple[str, Feeds]]:
        random = np.random.default_rng(0)
        for sample in _readable(samples, graph, model):
            text, is_cut = _encode(sample, model)
            self.truncated += is_cut
            yield _replace_spaces(sample.place), text_feeds(text, graph, model, random)


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
    return {port.name: feeds[port.role] for port in graph.inputs if port.role in feeds}


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
    if not classifies_texts(graph) and not reads_only_pairs(model.manifest):
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


def _encode(sample: TextSample, model: LoadedModel) -> tuple[EncodedText, bool]:
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
    return whole.truncate(limit), len(whole) > limit


def _kind_of_pixels(model: LoadedModel) -> str:
    image = model.manifest.image
    return "regions" if image is not None and image.regions is not None else "images"


def _image(path: Path, graph: Graph, model: LoadedModel) -> tuple[str, Feeds]:
    """One image file as a batch of one.

    Raises:
        SetupError: it cannot be read.
    """
    try:
        image = read_image(path.read_bytes(), ImageLimits(), model.image)
    except ServingError as error:
        raise SetupError(f"--calibration {path}: {error}") from error
    port = graph.input(Role.PIXELS)
    assert port is not None
    return _replace_spaces(path.name), {port.name: image.pixels[None]}


def _replace_spaces(place: str) -> str:
    """A place as those of observations are: one word."""
    return place.replace(" ", "_")
