"""Sections of conversations, and images encoded one at a time or all at once."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from torch import Tensor, nn
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from benchmarks.local_model import LocalModel
from export.architecture import Graphs, Lowering
from export.checkpoint.checkpoint import Checkpoint
from export.decoder_graphs.chat_section import (
    chat_section,
    image_caption_section,
    image_chat_section,
)
from export.decoder_graphs.image_tokens import AdmitImageVectors
from export.graphs.source_model import SourceModel
from export.graphs.to_onnx import to_onnx
from export.parity.torch_runner import TorchRunner
from export.pipeline.manifest import Request, build_manifest
from inference.bundle.inputs import PromptImages
from inference.bundle.manifest import Bundle, Graph, Role
from inference.bundle.manifest import Tensor as Port
from inference.errors import CheckpointError
from inference.tasks.chat import TASK
from tests.export.tokenizer.tiny_tokenizers import CHAT_TEMPLATE, chat_tokenizer
from tests.export.twins import make_twin
from triptych.tasks.chat import ChatMessage, ChatRequest

CHATS = [
    [("user", "abba")],
    [("user", "ab ba"), ("assistant", "caba"), ("user", "a<|assistant|>b</s>")],
]
NEW_TOKENS = 10
CONTENT = "{{ messages[0].content }}"
NEW = "new é " + CONTENT
Folder = Callable[..., Path]


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    def make(**settings: Any) -> Path:
        make_twin("llama", "odd", tmp_path)
        chat_tokenizer().save(str(tmp_path / "tokenizer.json"))
        values = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": "<s>",
            "eos_token": {"__type": "AddedToken", "content": "</s>", "special": True},
            "pad_token": "<pad>",
            **settings,
        }
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(values))
        return tmp_path

    return make


def _manifest(folder: Path, task: str | None = None) -> tuple[Bundle, Graphs]:
    model = SourceModel.open(folder)
    graphs = model.graphs()
    manifest, _ = build_manifest(Request("chatty", task), 1, model, graphs)
    return Bundle(folder, manifest), graphs


@pytest.mark.parametrize("chat", CHATS, ids=["one message", "special tokens written out"])
def test_answer_is_that_of_transformers(chat: list[tuple[str, str]], folder: Folder) -> None:
    source = folder(chat_template=CHAT_TEMPLATE)
    bundle, graphs = _manifest(source)
    assert list(bundle.manifest.tasks) == ["generate", "chat"]
    local = LocalModel(bundle, TorchRunner(graphs, bundle.manifest), {})
    messages = [ChatMessage(role=role, content=content) for role, content in chat]
    request = ChatRequest(messages=messages, max_new_tokens=NEW_TOKENS)
    plan = TASK.prepare(request, (), local.model)

    tokenizer = PreTrainedTokenizerFast.from_pretrained(source)
    ids = tokenizer.apply_chat_template(
        [message.model_dump() for message in messages],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )["input_ids"]
    assert plan.calls[0].inputs["prompt_ids"].tolist() == ids[0].tolist()
    model = LlamaForCausalLM.from_pretrained(source)
    with torch.no_grad():
        output = model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=NEW_TOKENS
        )
    want = tokenizer.decode(output[0, ids.shape[1] :], skip_special_tokens=True)
    (item,) = plan.finish(local.answer(plan.calls)).data
    assert item.text == want


def _section(folder: Path) -> Any:
    return chat_section(torch.nn.Identity(), Checkpoint(folder, "x", {}))


def test_template_in_its_own_file_wins(folder: Folder) -> None:
    source = folder(chat_template=CONTENT)
    (source / "chat_template.jinja").write_text(NEW, encoding="utf-8")
    assert _section(source)["template"] == NEW
    assert PreTrainedTokenizerFast.from_pretrained(source).get_chat_template() == NEW


def test_default_one_of_several_templates_is_taken(folder: Folder) -> None:
    named = [
        {"name": "tool_use", "template": "tools " + CONTENT},
        {"name": "default", "template": CONTENT},
    ]
    source = folder(chat_template=named)
    assert _section(source)["template"] == CONTENT
    assert PreTrainedTokenizerFast.from_pretrained(source).get_chat_template() == CONTENT
    assert _section(folder(chat_template=named[:1])) is None


def test_special_tokens_are_those_that_transformers_gives_a_template(folder: Folder) -> None:
    source = folder(chat_template=CONTENT)
    theirs = PreTrainedTokenizerFast.from_pretrained(source).special_tokens_map
    assert _section(source)["special_tokens"] == theirs


def test_checkpoint_without_a_template_serves_generate_alone(folder: Folder) -> None:
    source = folder()
    bundle, _ = _manifest(source)
    assert list(bundle.manifest.tasks) == ["generate"]
    with pytest.raises(CheckpointError, match="lacks what 'chat' needs"):
        _manifest(source, "chat")


def test_damaged_template_is_refused(folder: Folder) -> None:
    with pytest.raises(CheckpointError, match="it does not compile: Unexpected end"):
        _manifest(folder(chat_template="{% for m in messages %}"))


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{{ raise_exception('a system message\nis missing') }}", "a system message is missing"),
        ("{{ messages[0].content | tojson(indent=nothing.at.all) }}", "'nothing' is undefined"),
        ("{% for i in range(9999) %}{% for i in range(9999) %}{% endfor %}{% endfor %}", "steps"),
        ("{% for m in messages %}{{ 'x' * 200000 }}{{ m.content }}{% endfor %}", "200000"),
        ("{% for m in messages %}{% for part in m.content %}{{ part.text }}{% endfor %}"
         "{% endfor %}", "leaves out what the one message"),
    ],
    ids=["refuses it", "undefined", "endless", "too long", "expects parts"],
)  # fmt: skip
def test_template_that_fails_for_the_simplest_conversation_is_refused(
    template: str, reason: str, folder: Folder
) -> None:
    with pytest.raises(CheckpointError, match=f"cannot be used: .*{reason}.*export the model with"):
        _section(folder(chat_template=template))


def test_template_with_a_token_without_an_embedding_is_refused_by_name(folder: Folder) -> None:
    source = folder(chat_template="<|late|>" + CONTENT)
    tokenizer = chat_tokenizer()
    tokenizer.add_tokens([f"more{number}" for number in range(64)])  # the table has 64 rows
    tokenizer.add_special_tokens(["<|late|>"])
    tokenizer.save(str(source / "tokenizer.json"))
    with pytest.raises(CheckpointError, match=r"every text would be refused: '<\|late\|>'"):
        _manifest(source)


NETWORK: Any = SimpleNamespace(images=PromptImages(positions=2, token_id=5, tokens=2))
PARTS = (
    "{% for m in messages %}{% for p in m.content %}"
    "{% if p.type == 'image' %}<image>\n{% else %}{{ p.text }}{% endif %}{% endfor %}{% endfor %}"
)
PLAIN = "{% for m in messages %}{{ m.content }}{% endfor %}"


def _folder(folder: Path, file: str, template: str) -> Checkpoint:
    added = [{"content": "<image>", "id": 5}]
    (folder / "tokenizer.json").write_text(json.dumps({"added_tokens": added}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>"}))
    text = template if file.endswith(".jinja") else json.dumps({"chat_template": template})
    (folder / file).write_text(text)
    return Checkpoint(folder, "x", {})


@pytest.mark.parametrize("file", ["chat_template.jinja", "chat_template.json"])
def test_a_template_of_parts_takes_images(file: str, tmp_path: Path) -> None:
    section = image_chat_section(NETWORK, _folder(tmp_path, file, PARTS))
    assert section == {
        "template": PARTS,
        "special_tokens": {"bos_token": "<s>"},
        "images": {"place": "<image>"},
    }


def test_a_template_of_texts_takes_none(tmp_path: Path) -> None:
    section = image_chat_section(NETWORK, _folder(tmp_path, "chat_template.jinja", PLAIN))
    assert "images" not in section


def test_a_checkpoint_without_a_template_has_no_section(tmp_path: Path) -> None:
    assert image_chat_section(NETWORK, _folder(tmp_path, "other.jinja", PARTS)) is None


def test_an_instruction_for_a_caption_is_written_into_the_template(tmp_path: Path) -> None:
    template = f"{{{{ bos_token }}}}{PARTS} ASSISTANT:"
    section = image_caption_section(NETWORK, _folder(tmp_path, "chat_template.jinja", template))
    assert section["layout"] == ("<s><image>\n", " ASSISTANT:")
    assert section["is_complete"]


def test_a_caption_without_a_template_of_parts_has_its_first_words(tmp_path: Path) -> None:
    checkpoint = _folder(tmp_path, "chat_template.jinja", PLAIN)
    assert image_caption_section(NETWORK, checkpoint) == {"images": {"place": "<image>"}}


class _Counting(nn.Module):
    """An encoder that counts the images of each call."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(12, 5)
        self.calls: list[int] = []

    def forward(self, images: Tensor) -> Tensor:
        """(B, 2, 2, 3) → (B, 1, 5)."""
        if not torch.compiler.is_compiling():
            self.calls.append(len(images))
        return self.linear(images.flatten(1))[:, None]


def test_images_are_read_one_at_a_time_and_exported_as_one_batch(tmp_path: Path) -> None:
    pixels = Port(name="pixels", dtype="uint8", shape=("B", "I", 2, 2, 3), role=Role.PIXELS)
    vectors = Port(name="vectors", dtype="float32", shape=("B", "S", 5), role=Role.STATE)
    graph = Graph(file="admit.onnx", inputs=(pixels,), outputs=(vectors,))
    encoder = _Counting()
    module = AdmitImageVectors(encoder).eval()
    given = np.random.default_rng(0).integers(0, 256, (2, 3, 2, 2, 3), dtype=np.uint8)
    with torch.no_grad():
        (wanted,) = module(torch.from_numpy(given))
    assert encoder.calls == [1] * 6
    to_onnx(Lowering(module, graph), tmp_path / graph.file)
    session = onnxruntime.InferenceSession(str(tmp_path / graph.file))
    (found,) = session.run(None, {"pixels": given})
    np.testing.assert_allclose(found, wanted.numpy(), rtol=1e-4, atol=1e-4)
    assert sum(node.op_type in ("Gemm", "MatMul") for node in _nodes(tmp_path / graph.file)) == 1


def _nodes(path: Path) -> list[object]:
    import onnx

    return list(onnx.load(str(path)).graph.node)
