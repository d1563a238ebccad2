"""Twins are built once a session and shared; a test that changes a network copies it first."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from examples import CHECKPOINTS
from export.architecture import Architecture, Graphs
from export.checkpoint.checkpoint import Checkpoint, open_checkpoint
from export.graphs.source_model import Preprocessing, SourceModel
from export.graphs.to_onnx import to_onnx
from export.parity.verify import Report
from export.pipeline.manifest import Request, build_manifest
from export.precision import Precision
from export.quantization.lower_precision import lower_precision
from export.registry import architecture
from inference.bundle.inputs import TokenizerSpec
from inference.bundle.manifest import MANIFEST, Bundle, Manifest, Role
from tests.export.operators import operators_read_once
from tests.export.twins import image_recipe, make_twin
from tests.shared_folders import made_once, shared_folder


@dataclass(frozen=True)
class TwinPair:
    """A twin's reference and our own network with the same weights."""

    reference: Any
    source: SourceModel
    expected: list[tuple[Tensor, Tensor | None, Tensor | None]] = field(default_factory=list)
    """What a generator's reference computes, kept by `tests.export.oracle`."""
    wanted: dict[Any, dict[str, Tensor]] = field(default_factory=dict)
    """Inputs of a stateless reference → its outputs, kept by `tests.export.oracle`."""

    @property
    def checkpoint(self) -> Checkpoint:
        """The folder that the reference was saved to."""
        return self.source.checkpoint

    @property
    def architecture(self) -> Architecture:
        """Of our network."""
        return self.source.architecture

    @property
    def network(self) -> nn.Module:
        """Ours."""
        return self.source.network

    @property
    def prepared(self) -> Preprocessing:
        """Tokenizer and image recipe."""
        return self.source.preprocessing

    def graphs(self) -> Graphs:
        """Graphs over a copy of the network."""
        return self.architecture.graphs(copy.deepcopy(self.network), self.prepared.image)

    @property
    def is_resized(self) -> bool:
        """Whether the image recipe gives another size than the checkpoint's."""
        declared = self.architecture
        size = declared.size_of(declared.read_config(self.checkpoint.config))
        return self.prepared.image.shape[:2] != size

    @staticmethod
    def vocabulary_size(graphs: Graphs) -> int:
        """Tokens that a generator scores."""
        return int(graphs.lowerings["step"].graph.output(Role.LOGITS).shape[-1])


def example_bundle(name: str, folder: Path) -> Bundle:
    """One example's bundle without graphs, staged in a folder: made in a second."""
    model = SourceModel.open(CHECKPOINTS / name)
    manifest, _ = build_manifest(Request(name), 1, model, model.graphs())
    for file, content in model.preprocessing.files.items():
        (folder / file).write_bytes(content)
    return Bundle(folder, manifest)


Twins = Callable[[str, str], TwinPair]
Bundles = Callable[[str, str], Bundle]
Lowered = Callable[[str, str], Bundle]


EXPORTS = {"bundles", "layers"}
"""Fixtures that export graphs: seconds each, so the tests that use them are no unit tests."""
SIBLINGS = {
    *("smollm3", "granite", "olmo", "stablelm", "phi3", "starcoder2"),
    *("openai-gpt", "gpt_neo", "opt", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text"),
    *("megatron-bert", "roberta", "distilbert", "albert", "mpnet", "modernbert", "electra"),
    *("mbart", "pegasus", "m2m_100", "deit", "dinov2", "open_clip", "siglip", "owlv2"),
    *("siglip2", "metaclip_2", "chinese_clip", "altclip", "align", "vilt", "groupvit"),
    *("lxmert", "visual_bert"),
    *(
        "translator",
        "transformer",
        "rnn-seq2seq",
        "blip-2",
        "instructblip",
        "idefics2",
        "idefics3",
        "internvl",
        "mllama",
        "llava_next",
        "llava_onevision",
        "gemma3",
    ),
    *("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "florence2", "pix2struct", "bart", "blip", "git"),
    *("owlvit", "swin", "xlnet", "resnet", "convnext", "convnextv2", "beit", "segformer", "swinv2"),
    *("blenderbot", "blenderbot-small", "plbart", "mvp", "umt5", "encoder-decoder"),
    *("bigbird_pegasus", "longt5", "led", "t5gemma", "seamless_m4t", "fsmt"),
    "grounding-dino",  # none of its own, but shapes of any size take minutes to trace
    "vision-encoder-decoder",  # exported as an example
}
"""Architectures that share every layer with another one. In `make test` their networks are compared
with `transformers`, and traced where they can be; their graphs are for `make test-all`."""
TRACED = {
    *("gpt_neo", "opt", "gemma2", "albert", "modernbert", "dinov2", "siglip", "owlv2"),
    *("siglip2", "owlvit", "swin", "xlnet", "starcoder2", "align", "vilt", "groupvit"),
    *("lxmert", "visual_bert"),
}
"""Siblings that have a form of their own, traced in `make test`, which takes a third of an export.
A trace of a decoder with a source refuses other sizes, for example as many positions as the source
has."""
LOWERED_ALIKE = SIBLINGS | {
    *("blip", "git", "bart", "bahdanau", "show-and-tell"),
    *("show-attend-tell", "clip", "owlvit", "llava", "blip-2", "paligemma", "instructblip"),
    *("swin", "xlnet", "perceiver", "pegasus_x", "switch_transformers", "prophetnet"),
    *("t5gemma2", "xclip"),
}
"""Architectures whose graphs have no operator that is rewritten for int8 and that no other graph
has: theirs are lowered in `make test-all` alone."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if EXPORTS & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.slow)
            is_lowering = item.path.parent.name in ("quantization", "processors")
            if _name(item) in (LOWERED_ALIKE if is_lowering else SIBLINGS):
                item.add_marker(pytest.mark.full)


def _name(item: pytest.Item) -> str | None:
    """The architecture that a test is parametrised with."""
    parameters: dict[str, Any] = getattr(getattr(item, "callspec", None), "params", {})
    return parameters.get("name")


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def _operators_read_once() -> Iterator[None]:
    with operators_read_once():
        yield


@pytest.fixture(scope="session")
def twins(tmp_path_factory: pytest.TempPathFactory) -> Twins:
    """(architecture, configuration) → its twin."""

    @cache
    def build(name: str, config: str) -> TwinPair:
        folder = tmp_path_factory.mktemp(f"{name}-{config}")
        return pair_of(name, config, folder, make_twin(name, config, folder))

    return build


def pair_of(name: str, config: str, folder: Path, reference: Any) -> TwinPair:
    """A twin's pair, from the checkpoint that its reference was saved to."""
    _write_tokenizer(folder)
    source = SourceModel(open_checkpoint(str(folder)), architecture(name))
    tokenizer = TokenizerSpec(kind="tokenizers", pad_token_id=0, eos_token_id=63, files={})
    image = image_recipe(source.architecture, config, source.configuration)
    source.preprocessing = Preprocessing(tokenizer, {}, image)
    return TwinPair(reference, source)


def _write_tokenizer(folder: Path) -> None:
    """What sections of the manifest read from the tokenizer."""
    added = {"en_XX": 5, "de_DE": 6, "<start_of_image>": 59, "<fake_token_around_image>": 60}
    added["<image>"] = 61
    tokens = [{"content": text, "id": token} for text, token in added.items()]
    tokenizer = {"model": {"vocab": {"[MASK]": 4}}, "added_tokens": tokens}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"mask_token": "[MASK]", "bos_token": "<s>"})
    )


@pytest.fixture(scope="session")
def bundles(
    twins: Twins, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Bundles:
    """(architecture, configuration) → its ONNX graphs and manifest, not verified.

    Parallel test workers share them, because exporting is slow.
    """
    shared = shared_folder(tmp_path_factory, request.config)

    @cache
    def build(name: str, config: str) -> Bundle:
        twin, graphs = twins(name, config), twins(name, config).graphs()
        manifest, _ = build_manifest(Request("twin"), 1, twin.source, graphs)
        stage = made_once(
            shared / f"bundle-{name}-{config}",
            lambda folder: export_graphs(graphs, manifest, folder),
        )
        return Bundle(stage / manifest.name, manifest)

    return build


@pytest.fixture(scope="session")
def int8(
    twins: Twins,
    bundles: Bundles,
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
) -> Lowered:
    """(architecture, configuration) → its bundle in int8, with its report; shared as `bundles`."""
    shared = shared_folder(tmp_path_factory, request.config)

    @cache
    def build(name: str, config: str) -> Bundle:
        original = bundles(name, config)

        def lower(folder: Path) -> None:
            bundle = lowered(original, twins(name, config), folder)
            (bundle.folder / MANIFEST).write_text(bundle.manifest.model_dump_json())

        stage = made_once(shared / f"int8-{name}-{config}", lower) / "stage" / original.folder.name
        return Bundle(stage, Manifest.model_validate_json((stage / MANIFEST).read_text()))

    return build


def export_graphs(graphs: Graphs, manifest: Manifest, stage: Path) -> None:
    """Writes all graphs."""
    for key, lowering in graphs.lowerings.items():
        folder = stage / manifest.parts.get(key, manifest.name)
        folder.mkdir(exist_ok=True)
        to_onnx(lowering, folder / lowering.graph.file)


def lowered(original: Bundle, twin: TwinPair, folder: Path, precision: str = "int8") -> Bundle:
    """A twin's bundle, copied and rewritten; its report is stored beside it."""
    shutil.copytree(original.folder.parent, folder / "stage")
    staged = Bundle(folder / "stage" / original.folder.name, original.manifest)
    report = Report()
    manifest = lower_precision(report, twin.graphs(), staged, Precision(precision))
    (staged.folder / "report.json").write_text(json.dumps(report.as_json()))
    return Bundle(staged.folder, manifest)
