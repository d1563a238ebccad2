"""A tokenizer with more tokens than the network has embeddings of: every family, every task."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from pydantic import BaseModel
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import nn

from export.graphs.source_model import Preprocessing, SourceModel
from export.pipeline.manifest import Request, build_manifest
from export.pipeline.token_rows import check_texts, usable_padding
from export.registry import architecture, families
from inference.bundle.inputs import TokenizerSpec
from inference.bundle.manifest import Bundle, Manifest
from inference.errors import CheckpointError, InvalidRequest
from inference.processing.tokenizer_kinds import load_tokenizer
from inference.tasks import TASKS
from inference.tasks.shared.loaded_model import LoadedModel
from inference.tasks.shared.served_task import sections_of
from tests.export.conftest import Twins, pair_of
from tests.export.twin import EXPORTED
from tests.export.twins import make_twin, twin_of
from triptych.tasks.caption import CaptionRequest
from triptych.tasks.chat import ChatMessage, ChatRequest
from triptych.tasks.classify import ClassifyRequest
from triptych.tasks.detect import DetectRequest
from triptych.tasks.embed import EmbedRequest
from triptych.tasks.fill_mask import FillMaskRequest
from triptych.tasks.generate import GenerateRequest
from triptych.tasks.rerank import RerankRequest
from triptych.tasks.score import ScoreRequest
from triptych.tasks.segment import SegmentRequest
from triptych.tasks.tag import TagRequest
from triptych.tasks.translate import TranslateRequest
from triptych.tasks.zero_shot import ZeroShotRequest

LATE = "plainnew"
"""A token behind the table."""
READS_TEXT = [
    name
    for name in families()
    if (declared := architecture(name)).tokenizer is not None
    and declared.reads_text(declared.read_config(twin_of(name).configs[EXPORTED] | {}))
]
SPEC = TokenizerSpec(
    kind="tokenizers",
    pad_token_id=0,
    eos_token_id=1,
    bos_token_id=2,
    unk_token_id=3,
    files={"tokenizer": "tokenizer.json"},
)


def tokenizer_json(rows: int, special: str | None = None) -> bytes:
    """Words `w0` to the last row's, a few tokens that twins name, and one more than there are rows.

    Args:
        special: A token in front of every text.
    """
    words = {f"w{number}": number for number in range(rows)}
    for text, number in (("[MASK]", 4), ("<image>", 61), ("<unk>", 3)):
        if number < rows:
            del words[f"w{number}"]
            words[text] = number
    made = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.add_tokens([LATE])
    if special is not None:
        number = made.token_to_id(special)
        made.post_processor = processors.TemplateProcessing(
            single=f"{special} $A", pair=f"{special} $A $B", special_tokens=[(special, number)]
        )
    return made.to_str().encode()


def source_of(twins: Twins, name: str, special: str | None = None, **spec: Any) -> SourceModel:
    """A twin whose tokenizer has one token more than its table."""
    twin = twins(name, EXPORTED)
    model = SourceModel(twin.checkpoint, twin.architecture)
    rows = manifest_of(twins, name).text_rows
    assert rows is not None
    files = {"tokenizer.json": tokenizer_json(rows, special)}
    model.preprocessing = Preprocessing(SPEC.model_copy(update=spec), files, twin.prepared.image)
    return model


def manifest_of(twins: Twins, name: str) -> Manifest:
    twin = twins(name, EXPORTED)
    return build_manifest(Request("twin"), 1, twin.source, twin.graphs())[0]


def loaded(twins: Twins, name: str, folder: Path) -> LoadedModel:
    model = source_of(twins, name)
    manifest, warnings = build_manifest(Request("twin"), 1, model, twins(name, EXPORTED).graphs())
    assert [line for line in warnings if LATE in line]
    for file, content in model.preprocessing.files.items():
        (folder / file).write_bytes(content)
    sections = sections_of(manifest, TASKS)
    return LoadedModel(manifest, sections, load_tokenizer(Bundle(folder, manifest)))


PICTURE = Image.linear_gradient("L").resize((64, 64)).convert("RGB")


def picture() -> bytes:
    file = io.BytesIO()
    PICTURE.save(file, "PNG")
    return file.getvalue()


def request_of(task: str, texts: list[str], model: LoadedModel) -> BaseModel | None:
    """A request with these texts, one by one or as what a picture is asked for; None: without."""
    image = base64.b64encode(picture()).decode()
    reads_image = model.manifest.image is not None
    name = {"model": "twin"}
    if task == "classify":
        pairs = TASKS[task].section_of(model).pairs == "required"
        if pairs:
            return ClassifyRequest(**name, pairs=[(text, "w7") for text in texts])
        return ClassifyRequest(**name, texts=texts)
    if task == "generate":
        places = getattr(model.sections[task], "images", None)
        if places is None:
            return GenerateRequest(**name, prompts=texts)
        shown = [f"{places.place}{text}" for text in texts]
        return GenerateRequest(**name, prompts=shown, images=[image] * len(texts))
    if task == "caption" and len(texts) == 1:
        return CaptionRequest(**name, images=[image], prompt=texts[0])
    if task == "score" and (not reads_image or model.manifest.takes_image_lists):
        return ScoreRequest(**name, targets=[" w5"] * len(texts), texts=texts)
    if task == "score":
        return ScoreRequest(**name, targets=texts, images=[image])
    if task == "rerank":
        return RerankRequest(**name, query="w5", documents=texts)
    if task == "detect" and request_takes_labels(model):
        return DetectRequest(**name, images=[image], labels=texts)
    makers: dict[str, Any] = {
        "embed": lambda: EmbedRequest(**name, texts=texts),
        "tag": lambda: TagRequest(**name, texts=texts),
        "translate": lambda: TranslateRequest(**name, texts=texts, **languages(model)),
        "fill-mask": lambda: FillMaskRequest(**name, texts=[f"{each} [MASK]" for each in texts]),
        "zero-shot": lambda: ZeroShotRequest(**name, images=[image], labels=texts),
        "segment": lambda: SegmentRequest(**name, images=[image], labels=texts),
        "chat": lambda: ChatRequest(
            **name, messages=[ChatMessage(role="user", content=" ".join(texts))]
        ),
    }
    return makers[task]() if task in makers else None


def languages(model: LoadedModel) -> dict[str, str]:
    """The languages of models that have tokens for them."""
    has_tokens = model.manifest.tasks["translate"].get("tokens")
    return {"source": "en_XX", "target": "de_DE"} if has_tokens else {}


def request_takes_labels(model: LoadedModel) -> bool:
    return model.manifest.generator is None


def plan(task: str, request: Any, model: LoadedModel) -> Any:
    images = [picture()] * len(getattr(request, "images", None) or ())
    return TASKS[task].prepare(request, images, model)


ALONE = {"classify", "embed", "tag", "translate", "fill-mask", "generate", "score", "rerank"}
"""Tasks whose texts do not depend on each other."""


@pytest.mark.parametrize("name", READS_TEXT)
def test_rows_are_those_of_a_table_of_the_network(name: str, twins: Twins) -> None:
    rows = manifest_of(twins, name).text_rows
    network = twins(name, EXPORTED).network
    tables = [each for each in network.modules() if isinstance(each, nn.Embedding)]
    sizes = {each.num_embeddings for each in tables}
    # Idefics has a second table for the tokens of images.
    assert rows in sizes | {len(each) for each in network.parameters() if each.ndim} | {sum(sizes)}


@pytest.mark.parametrize("name", READS_TEXT)
def test_text_is_refused_by_name_and_its_neighbours_are_not(
    name: str, twins: Twins, tmp_path: Path
) -> None:
    model = loaded(twins, name, tmp_path)
    asked = 0
    for task in model.sections:
        late, fine = f"w5 {LATE}", "w6 w7"
        request = request_of(task, [late], model)
        if request is None:
            continue
        asked += 1
        with pytest.raises(InvalidRequest, match=f"{LATE}|the vocabulary .* cannot") as caught:
            plan(task, request, model)
        assert caught.value.field, task
        if task in ALONE:
            alone = plan(task, request_of(task, [fine], model), model)
            mixed = plan(task, request_of(task, [fine, late], model), model)
            assert len(mixed.calls) == len(alone.calls) > 0, task
    assert asked or name in ("git", "vision-encoder-decoder")


@pytest.mark.parametrize("name", READS_TEXT)
def test_token_of_every_text_without_an_embedding_is_refused_at_export(
    name: str, twins: Twins
) -> None:
    model = source_of(twins, name, special=LATE)
    with pytest.raises(CheckpointError, match=f"every text would be refused: '{LATE}'"):
        build_manifest(Request("twin"), 1, model, twins(name, EXPORTED).graphs())


@pytest.mark.parametrize("name", READS_TEXT)
def test_padding_without_an_embedding_is_another_token_or_refused(name: str, twins: Twins) -> None:
    manifest = manifest_of(twins, name)
    rows = manifest.text_rows
    assert rows is not None
    for pad in (rows, -1):
        spec = SPEC.model_copy(update={"pad_token_id": pad, "bos_token_id": rows})
        if name in ("siglip", "siglip2"):  # they read padding
            with pytest.raises(CheckpointError, match=f"padded with token {pad}"):
                usable_padding(manifest, spec, Path("twin"))
            continue
        usable = usable_padding(manifest, spec, Path("twin"))
        assert usable.pad_token_id == 0
        assert usable.bos_token_id is None


@pytest.mark.parametrize("name", ["eos_token_id", "suppress_tokens"])
@pytest.mark.parametrize("token", [64, -1])
def test_default_that_is_never_chosen_is_a_warning(name: str, token: int, tmp_path: Path) -> None:
    pair = pair_of("bart", "odd", tmp_path, make_twin("bart", "odd", tmp_path))
    values = {"decoder_start_token_id": 2, "pad_token_id": token, "eos_token_id": 2}
    (tmp_path / "generation_config.json").write_text(json.dumps({**values, name: [3, token]}))
    manifest, warnings = build_manifest(Request("twin"), 1, pair.source, pair.graphs())
    rules = manifest.generation
    assert rules is not None
    assert {"eos_token_id": rules.eos_token_ids, "suppress_tokens": rules.suppress_tokens}[
        name
    ] == (3,)
    assert rules.pad_token_id == 0
    assert [line for line in warnings if f"{name} to {token}," in line]


@pytest.mark.parametrize(
    ("name", "field", "named"),
    [("bert", "mask_token_id", "a mask"), ("llava", "images", "an image")],
)
def test_token_that_a_task_writes_by_its_id_needs_an_embedding(
    name: str, field: str, named: str, twins: Twins
) -> None:
    config = "masked" if name == "bert" else EXPORTED
    twin = twins(name, config)
    manifest = build_manifest(Request("twin"), 1, twin.source, twin.graphs())[0]
    rows = manifest.text_rows
    assert rows is not None
    files = {"tokenizer.json": tokenizer_json(rows)}
    manifest = manifest.model_copy(update={"tokenizer": SPEC})
    check_texts(manifest, files, Path("twin"))
    if field == "images":
        assert manifest.images is not None
        changed = {"images": manifest.images.model_copy(update={"token_id": rows})}
    else:
        changed = {"tasks": {"fill-mask": {**manifest.tasks["fill-mask"], field: rows}}}
    with pytest.raises(CheckpointError, match=f"twin: {named} is token {rows}"):
        check_texts(manifest.model_copy(update=changed), files, Path("twin"))
