"""What a folder holds beside or in place of weights in safetensors is named in one line."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from export.checkpoint.checkpoint import open_checkpoint
from export.graphs.source_model import SourceModel
from export.pipeline.manifest import Request, build_manifest
from inference.errors import CheckpointError
from tests.export.conftest import Twins
from tests.export.twin import EXPORTED

WEIGHTS = "model.safetensors"
QUANTISED = {"quantization_config": {"quant_method": "gptq", "bits": 4}}
OWN_CODE = {"auto_map": {"AutoModel": "modeling_own.OwnModel"}}


@pytest.fixture
def folder(twins: Twins, tmp_path: Path) -> Path:
    copied = tmp_path / "checkpoint"
    shutil.copytree(twins("gpt2", EXPORTED).checkpoint.folder, copied)
    return copied


def write(folder: Path, *files: str) -> None:
    for file in files:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_bytes(b"{}")


def edit(folder: Path, file: str, **changes: object) -> None:
    path = folder / file
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def refusal(folder: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        _ = SourceModel.open(folder).network
    assert "\n" not in caught.value.message
    return caught.value.message


@pytest.mark.parametrize("has_config", [True, False])
@pytest.mark.parametrize(
    ("files", "named"),
    [
        (["m.gguf"], "GGUF"),
        (["pytorch_model.bin"], "can run code"),
        (["last.ckpt"], "can run code"),
        (["pytorch_model.bin", "m.gguf", "onnx/model.onnx"], "can run code"),
        (["training_args.bin", "m.gguf"], "GGUF"),
        (["tf_model.h5"], "TensorFlow"),
        (["bert_model.ckpt.index", "bert_model.ckpt.data-00000-of-00001"], "TensorFlow"),
        (["saved_model.pb"], "TensorFlow"),
        (["flax_model.msgpack"], "Flax"),
        (["model.onnx"], "ONNX"),
        (["onnx/model.onnx"], "ONNX"),
        (["openvino_model.xml", "openvino_model.bin"], "OpenVINO"),
        (["consolidated.00.pth", "params.json"], "authors' own code"),
        (["consolidated.safetensors", "params.json"], "authors' own code"),
        (["adapter_config.json", "adapter_model.safetensors"], "an adapter without its base"),
        (["model_index.json"], "diffusers"),
        (["weights.npz"], "numpy"),
    ],
)
def test_other_weights_alone_are_named(
    files: list[str], named: str, has_config: bool, folder: Path
) -> None:
    (folder / WEIGHTS).unlink()
    if not has_config:
        (folder / "config.json").unlink()
    write(folder, *files)
    message = refusal(folder)
    assert named in message
    assert any(file in message for file in files)


def test_weights_of_other_formats_beside_ours_are_not_read(folder: Path) -> None:
    write(folder, "m.gguf", "pytorch_model.bin", "tf_model.h5", "onnx/model.onnx", "flax.msgpack")
    assert SourceModel.open(folder).network is not None


def test_file_in_place_of_a_folder_is_named(folder: Path) -> None:
    write(folder, "m.gguf")
    for file, named in (("m.gguf", "GGUF"), (WEIGHTS, "give the folder")):
        with pytest.raises(CheckpointError, match=named):
            open_checkpoint(str(folder / file))


def test_formats_on_the_hub_are_named_although_they_are_not_downloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "README.md")
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: tmp_path)
    monkeypatch.setattr("huggingface_hub.list_repo_files", lambda *_, **__: ["q4.gguf"])
    with pytest.raises(CheckpointError, match=r"own/model holds its weights in GGUF"):
        open_checkpoint("own/model")


@pytest.mark.parametrize(
    "file",
    [
        *("adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"),
        *("adapters.safetensors", "pytorch_lora_weights.safetensors"),
    ],
)
def test_adapter_beside_its_base_is_refused(file: str, folder: Path) -> None:
    write(folder, file)
    message = refusal(folder)
    assert "an adapter (LoRA) beside the weights of its base" in message
    assert file in message


def packed(*names: str, dtype: torch.dtype) -> Callable[[Path], None]:
    """Replaces a weight by tensors of these last names."""

    def change(folder: Path) -> None:
        tensors = load_file(folder / WEIGHTS)
        [weight] = [name for name in tensors if name.endswith("h.0.mlp.c_fc.weight")]
        del tensors[weight]
        for name in names:
            tensors[weight.replace("weight", name)] = torch.zeros(3, 4).to(dtype)
        save_file(tensors, folder / WEIGHTS)

    return change


@pytest.mark.parametrize("is_declared", [True, False])
@pytest.mark.parametrize(
    "change",
    [
        packed("qweight", "qzeros", "scales", "g_idx", dtype=torch.int32),
        packed("weight", "weight_scale_inv", dtype=torch.float8_e4m3fn),
        packed("weight", "weight.absmax", dtype=torch.uint8),
        packed("weight", "SCB", dtype=torch.int8),
        packed("weight_packed", "weight_scale", dtype=torch.int32),
    ],
)
def test_quantised_weights_are_refused_in_one_line(
    change: Callable[[Path], None], is_declared: bool, folder: Path
) -> None:
    change(folder)
    if is_declared:
        edit(folder, "config.json", **QUANTISED)
    message = refusal(folder)
    assert "has quantised weights" in message
    assert ("(gptq)" in message) == is_declared


@pytest.mark.parametrize(
    ("file", "changes", "named"),
    [
        ("config.json", QUANTISED, "calls the weights quantised (gptq); they are not"),
        ("config.json", OWN_CODE, "modeling_own.OwnModel"),
        ("tokenizer_config.json", {"auto_map": {"AutoTokenizer": ["own.Own", None]}}, "own.Own"),
        ("tokenizer_config.json", {"auto_map": ["own.Own", None]}, "own.Own"),
    ],
)
def test_what_is_ignored_is_a_warning(
    file: str, changes: dict[str, object], named: str, folder: Path, twins: Twins
) -> None:
    edit(folder, file, **changes)
    twin = twins("gpt2", EXPORTED)
    model = SourceModel(open_checkpoint(str(folder)))
    model.preprocessing = twin.prepared
    _, warnings = build_manifest(Request("twin"), 1, model, model.graphs())
    assert [line for line in warnings if named in line]


def test_code_of_its_own_is_named_where_the_folder_cannot_be_read_without(folder: Path) -> None:
    tensors = load_file(folder / WEIGHTS)
    save_file({**tensors, "more": torch.zeros(1)}, folder / WEIGHTS)
    edit(folder, "config.json", **OWN_CODE)
    with pytest.raises(CheckpointError, match=r"modeling_own.OwnModel, which is not run"):
        _ = SourceModel.open(folder).network
    edit(folder, "config.json", model_type="own")
    assert "modeling_own.OwnModel" in refusal(folder)
