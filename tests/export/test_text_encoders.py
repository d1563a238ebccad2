"""Text encoders: heads, pooling, segments, and folders of `sentence_transformers`."""

from __future__ import annotations

import importlib
import importlib.util
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import typer
from safetensors.torch import save_file
from torch import Tensor, nn
from typer.testing import CliRunner

from export.checkpoint.checkpoint import Checkpoint, open_checkpoint
from export.config.config_reader import ConfigReader
from export.graphs.source_model import SourceModel
from export.pipeline.cli import export
from export.registry import architecture
from export.text_encoders.declaration import embed_section
from export.text_encoders.heads import HeadConfig, HeadKind, read_head
from export.text_encoders.network import TextModel, check_segments
from export.text_encoders.pooling import Pooling, PoolingMode, Projection
from export.text_encoders.sentence_transformers import limits, read_pooling, set_pooling
from inference.bundle.manifest import Limits, Role
from inference.bundle.reader import newest_bundle
from inference.errors import CheckpointError
from inference.processing.tokenizer_kinds import load_tokenizer
from tests.export.conftest import Twins
from tests.export.twins import build
from tests.inference.processing.tokenizer_files import trained
from tests.traced_memory import memory_below


def _head(**values: Any) -> HeadConfig:
    name = values.pop("architecture", "BertForSequenceClassification")
    values = {"architectures": [name]} | values
    return read_head(ConfigReader(values), "Bert", tuple(HeadKind))


@pytest.mark.parametrize(
    ("name", "tasks"),
    [
        ("BertModel", ("embed",)),
        ("BertForMaskedLM", ("fill-mask",)),
        ("BertForPreTraining", ("fill-mask", "classify")),
        ("BertForNextSentencePrediction", ("classify",)),
        ("BertForSequenceClassification", ("classify",)),
        ("BertForTokenClassification", ("tag",)),
        ("BertForQuestionAnswering", ("answer",)),
    ],
)
def test_tasks_follow_from_the_head(name: str, tasks: tuple[str, ...]) -> None:
    assert _head(architecture=name).tasks == tasks


def test_one_label_is_relevance_first() -> None:
    assert _head(num_labels=1).tasks == ("rerank", "classify")
    assert _head(id2label={"0": "relevant"}).tasks == ("rerank", "classify")


def test_configuration_without_architectures_is_a_bare_encoder() -> None:
    assert read_head(ConfigReader({}), "Bert", tuple(HeadKind)).kind is HeadKind.BARE


def test_unsupported_head_is_refused_with_the_supported_ones() -> None:
    with pytest.raises(CheckpointError, match=r"BertForMultipleChoice.*BertForMaskedLM"):
        _head(architecture="BertForMultipleChoice")


def test_head_that_a_family_lacks_is_refused() -> None:
    reader = ConfigReader({"architectures": ["BertForPreTraining"]})
    with pytest.raises(CheckpointError, match=r"only BertModel$"):
        read_head(reader, "Bert", (HeadKind.BARE,))


def test_labels_are_in_the_order_of_their_indices() -> None:
    assert _head(id2label={"1": "good", "10": "k", "0": "bad"} | _LETTERS).labels == (
        *("bad", "good"),
        *_LETTERS.values(),
        "k",
    )


_LETTERS = {str(index): chr(96 + index) for index in range(2, 10)}


def test_labels_default_to_the_names_of_transformers() -> None:
    assert _head().labels == ("LABEL_0", "LABEL_1")
    assert _head(num_labels=3).labels == ("LABEL_0", "LABEL_1", "LABEL_2")


def test_enormous_number_of_labels_is_refused_before_names_are_made() -> None:
    with memory_below(1e6), pytest.raises(CheckpointError, match="num_labels = 2147483647 is over"):
        _head(num_labels=2**31 - 1)


@pytest.mark.parametrize("count", [0, True, "3", 2**31])
def test_number_of_labels_is_a_positive_whole_number(count: object) -> None:
    with pytest.raises(CheckpointError, match="num_labels must be a whole number"):
        _head(num_labels=count)


@pytest.mark.parametrize("listed", [{"0": "a", "2": "b"}, {"a": "b"}, ["a"], {}])
def test_labels_with_gaps_are_refused(listed: Any) -> None:
    with pytest.raises(CheckpointError, match="id2label must"):
        _head(id2label=listed)


@pytest.mark.parametrize(
    ("values", "activation"),
    [
        ({}, "softmax"),
        ({"num_labels": 1}, "sigmoid"),
        ({"problem_type": "multi_label_classification"}, "sigmoid"),
        ({"problem_type": "single_label_classification"}, "softmax"),
        ({"problem_type": "regression", "num_labels": 1}, "none"),
    ],
)
def test_activation_is_that_of_the_pipeline(values: dict[str, Any], activation: str) -> None:
    assert _head(**values).activation == activation


def test_unknown_problem_type_is_refused() -> None:
    with pytest.raises(CheckpointError, match="problem_type = 'ordinal' is not supported"):
        _head(problem_type="ordinal")


@pytest.mark.parametrize(
    ("values", "activation"),
    [
        ({}, "sigmoid"),
        ({"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}}, "none"),
        ({"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}, "none"),
        (
            {"sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Sigmoid"}},
            "sigmoid",
        ),
    ],
)
def test_relevance_is_activated_as_a_cross_encoder_does(
    values: dict[str, Any], activation: str
) -> None:
    assert _head(num_labels=1, **values).rerank_activation == activation


def test_unknown_activation_of_relevance_is_refused() -> None:
    with pytest.raises(CheckpointError, match="Tanh"):
        _head(sbert_ce_default_activation_function="torch.nn.modules.activation.Tanh")


LENGTHS = (5, 3, 1)
EXPECTED: dict[str, Callable[[Tensor], Tensor]] = {
    "cls": lambda row: row[0],
    "max": lambda row: torch.stack([max(column) for column in row.T]),
    "mean": lambda row: sum(row) / len(row),
    "mean_sqrt_len": lambda row: sum(row) / len(row) ** 0.5,
    "weighted_mean": lambda row: (
        sum((rank + 1) * vector for rank, vector in enumerate(row)) / sum(range(len(row) + 1))
    ),
    "last": lambda row: row[-1],
}


def _hidden() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.rand(3, 5, 7, generator=generator) - 2  # all negative: padding is no maximum
    return hidden, torch.tensor(LENGTHS, dtype=torch.int32)


def _rows(pool: Callable[[Tensor], Tensor]) -> Tensor:
    hidden, _ = _hidden()
    return torch.stack([pool(row[:size]) for row, size in zip(hidden, LENGTHS, strict=True)])


@pytest.mark.parametrize("mode", PoolingMode)
def test_pooling_ignores_padding(mode: PoolingMode) -> None:
    pooled = Pooling((mode,), layers=())(*_hidden())
    torch.testing.assert_close(pooled, _rows(EXPECTED[mode]))


def test_modes_are_concatenated_in_their_order() -> None:
    pooling = Pooling((PoolingMode.MEAN, PoolingMode.CLS), layers=())
    want = torch.cat([_rows(EXPECTED["mean"]), _rows(EXPECTED["cls"])], dim=1)
    torch.testing.assert_close(pooling(*_hidden()), want)
    assert pooling.output_width(7) == 14


def test_vectors_have_unit_length_by_default() -> None:
    pooled = Pooling()(*_hidden())
    torch.testing.assert_close(pooled.norm(dim=1), torch.ones(3))
    mean = _rows(EXPECTED["mean"])
    torch.testing.assert_close(pooled, mean / mean.norm(dim=1, keepdim=True))


def files(kind: str, folder: Path) -> dict[str, bytes]:
    trained(kind, folder)
    return {"tokenizer.json": (folder / "tokenizer.json").read_bytes()}


@pytest.mark.parametrize("name", ["bert", "albert"])
def test_a_segment_that_no_graph_reads_is_refused(name: str, tmp_path: Path) -> None:
    _, network = build(name)
    check_segments(network, files("word pieces", tmp_path))
    with pytest.raises(CheckpointError, match="segment other than 0"):
        check_segments(network, files("unigram", tmp_path))


def test_what_reads_segments_or_has_none_takes_any_tokenizer(tmp_path: Path) -> None:
    for name in ("xlnet", "distilbert"):
        _, network = build(name)
        check_segments(network, files("unigram", tmp_path))


BASE = "sentence_transformers.models."
POOLING = {"word_embedding_dimension": 32, "pooling_mode_mean_tokens": True}
MODULES = ("Transformer", "1_Pooling", "2_Normalize")
WORDS = "[PAD] [UNK] [CLS] [SEP] [MASK] a b c d e f g h query : passage".split()
TEXTS = ["a b c", "d", "e f g h a b c d", "query unknown h"]

app = typer.Typer()
app.command()(export)


def write(folder: Path, modules: tuple[str, ...] = MODULES, **files: Any) -> Checkpoint:
    """A folder's modules and further files (`a__b` is the file b.json of the folder a)."""
    listed = [
        {"idx": index, "type": BASE + name.rpartition("_")[2], "path": name * (index > 0)}
        for index, name in enumerate(modules)
    ]
    (folder / "modules.json").write_text(json.dumps(listed))
    for module in ("1_Pooling", *modules[1:]):
        (folder / module).mkdir(exist_ok=True)
    for name, content in ({"1_Pooling__config": POOLING} | files).items():
        (folder / f"{name.replace('__', '/')}.json").write_text(json.dumps(content))
    if not (folder / "config.json").exists():
        (folder / "config.json").write_text(json.dumps({"model_type": "bert"}))
    return open_checkpoint(str(folder))


def test_folder_with_flags_is_read(tmp_path: Path) -> None:
    pooling = read_pooling(write(tmp_path), width=32)
    assert (pooling.modes, pooling.is_normalized) == ((PoolingMode.MEAN,), True)


def test_folder_without_normalisation_returns_vectors_as_they_are(tmp_path: Path) -> None:
    pooling = read_pooling(write(tmp_path, MODULES[:2]), width=32)
    assert not pooling.is_normalized


@pytest.mark.parametrize(
    ("named", "modes"),
    [
        ("lasttoken", (PoolingMode.LAST,)),
        (["mean", "cls"], (PoolingMode.MEAN, PoolingMode.CLS)),
        ("mean_sqrt_len_tokens", (PoolingMode.MEAN_SQRT_LEN,)),
        ("weightedmean", (PoolingMode.WEIGHTED_MEAN,)),
    ],
)
def test_folder_with_named_modes_is_read(
    named: object, modes: tuple[PoolingMode, ...], tmp_path: Path
) -> None:
    folder = write(tmp_path, **{"1_Pooling__config": {"pooling_mode": named}})
    assert read_pooling(folder, width=32).modes == modes


def test_flags_are_concatenated_in_the_library_s_order(tmp_path: Path) -> None:
    flags = {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True}
    folder = write(tmp_path, **{"1_Pooling__config": flags})
    assert read_pooling(folder, width=32).modes == (PoolingMode.CLS, PoolingMode.MEAN)


def _dense(folder: Path, **changes: Any) -> Checkpoint:
    settings = {
        "in_features": 32,
        "out_features": 5,
        "activation_function": "torch.nn.modules.activation.Tanh",
    }
    modules = ("Transformer", "1_Pooling", "2_Dense", "3_Normalize")
    checkpoint = write(folder, modules, **{"2_Dense__config": settings | changes})
    tensors = {"linear.weight": torch.ones(5, 32), "linear.bias": torch.ones(5)}
    save_file(tensors, folder / "2_Dense" / "model.safetensors")
    return checkpoint


def test_linear_layer_is_read_with_its_weights(tmp_path: Path) -> None:
    pooling = read_pooling(_dense(tmp_path), width=32)
    (projection, _) = pooling.layers
    assert isinstance(projection, Projection)
    assert pooling.output_width(32) == 5
    torch.testing.assert_close(projection(torch.zeros(1, 32)), torch.ones(1, 5).tanh())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"in_features": 31}, "in_features = 31 is not supported, only 32"),
        ({"use_residual": True}, "use_residual"),
        ({"activation_function": "torch.nn.modules.activation.Mish"}, "Mish"),
        ({"activation_function": "elsewhere.Tanh"}, "only those of torch.nn"),
    ],
)
def test_linear_layers_that_are_not_supported_are_refused(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match=message):
        read_pooling(_dense(tmp_path, **changes), width=32)


@pytest.mark.parametrize(
    ("modules", "message"),
    [
        (("Transformer", "1_Pooling", "2_LSTM"), "models.LSTM is not supported"),
        (("WordEmbeddings", "1_Pooling"), "must begin with a Transformer"),
    ],
)
def test_modules_that_are_not_supported_are_refused(
    modules: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match=message):
        read_pooling(write(tmp_path, modules), width=32)


def test_pooling_without_the_prompt_is_refused(tmp_path: Path) -> None:
    folder = write(tmp_path, **{"1_Pooling__config": POOLING | {"include_prompt": False}})
    with pytest.raises(CheckpointError, match="include_prompt"):
        read_pooling(folder, width=32)


def test_damaged_list_of_modules_is_refused(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "modules.json").write_text('[{"type": "x"}]')
    with pytest.raises(CheckpointError, match="no list of modules"):
        open_checkpoint(str(tmp_path))


def test_encoder_of_a_folder_is_bare_whatever_its_configuration_names(tmp_path: Path) -> None:
    config = {"model_type": "mpnet", "architectures": ["MPNetForMaskedLM"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    declared = architecture("mpnet")
    assert declared.read_config(write(tmp_path).config).head.tasks == ("embed",)


def test_cross_encoder_keeps_its_head_and_has_its_activation(tmp_path: Path) -> None:
    config = {
        "model_type": "bert",
        "architectures": ["BertForSequenceClassification"],
        "id2label": {"0": "LABEL_0"},
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    settings = {"activation_fn": "torch.nn.modules.linear.Identity"}
    checkpoint = write(tmp_path, ("Transformer",), config_sentence_transformers=settings)
    head = architecture("bert").read_config(checkpoint.config).head
    assert (head.tasks, head.rerank_activation) == (("rerank", "classify"), "none")


@pytest.mark.parametrize(
    ("files", "wanted"),
    [
        ({"sentence_bert_config": {"max_seq_length": 128}}, 128),
        ({"sentence_bert_config": {"max_seq_length": 1024}}, 512),
        ({"tokenizer_config": {"model_max_length": 256}}, 256),
        ({"tokenizer_config": {"model_max_length": 1e30}}, 512),
        ({}, 512),
    ],
)
def test_limit_is_the_folder_s_or_the_network_s(
    files: dict[str, Any], wanted: int, tmp_path: Path
) -> None:
    found = limits(write(tmp_path, **files), Limits(max_input_tokens=512))
    assert found.max_input_tokens == wanted


def test_texts_that_the_folder_would_lower_are_refused(tmp_path: Path) -> None:
    folder = write(tmp_path, sentence_bert_config={"do_lower_case": True})
    with pytest.raises(CheckpointError, match="do_lower_case"):
        limits(folder, Limits())


def test_weights_of_modules_are_part_of_the_checksum(tmp_path: Path) -> None:
    before = _dense(tmp_path).content_hash
    weights = {"linear.weight": torch.zeros(5, 32), "linear.bias": torch.ones(5)}
    save_file(weights, tmp_path / "2_Dense" / "model.safetensors")
    assert open_checkpoint(str(tmp_path)).content_hash != before


def _network(folder: Path) -> tuple[TextModel, Checkpoint]:
    model = SourceModel.open(folder)
    assert isinstance(model.network, TextModel)
    return model.network, model.checkpoint


@pytest.fixture
def bare(twins: Twins, tmp_path: Path) -> Path:
    """A bare BERT of width 32, without pooling."""
    return Path(shutil.copytree(twins("bert", "plain").checkpoint.folder, tmp_path / "bare"))


def test_plain_folder_is_pooled_by_mean_and_says_so(bare: Path) -> None:
    network, checkpoint = _network(bare)
    note = set_pooling(network, checkpoint, None)
    assert note == ("pooling: mean, vectors of unit length (the default; --pooling changes it)")
    section = embed_section(network, checkpoint)
    assert section == {
        "is_normalized": True,
        "pooling": "mean",
        "prompts": {},
        "default_prompt": None,
    }


def test_pooling_of_a_plain_folder_may_be_chosen(bare: Path) -> None:
    network, checkpoint = _network(bare)
    assert set_pooling(network, checkpoint, "cls") == (
        "pooling: cls, vectors of unit length (chosen)"
    )
    assert network.pooling.modes == (PoolingMode.CLS,)


def test_pooling_that_the_folder_fixes_may_not_be_chosen(bare: Path) -> None:
    write(bare)
    with pytest.raises(CheckpointError, match=r"modules.json of this folder: leave out --pooling"):
        set_pooling(*_network(bare), "cls")


def test_pooling_of_a_network_that_does_not_embed_texts_is_refused(bare: Path) -> None:
    assert set_pooling(nn.Identity(), open_checkpoint(str(bare)), None) is None
    with pytest.raises(CheckpointError, match="leave out --pooling"):
        set_pooling(nn.Identity(), open_checkpoint(str(bare)), "cls")


def test_prompts_are_part_of_the_section(bare: Path) -> None:
    settings = {"prompts": {"query": "q: "}, "default_prompt_name": "query"}
    write(bare, MODULES[:2], config_sentence_transformers=settings)
    network, checkpoint = _network(bare)
    set_pooling(network, checkpoint, None)
    assert embed_section(network, checkpoint) == {
        "is_normalized": False,
        "pooling": "mean",
        "prompts": {"query": "q: "},
        "default_prompt": "query",
    }


HAS_LIBRARY = importlib.util.find_spec("sentence_transformers") is not None


def _library_modules(width: int) -> Iterator[tuple[str, list[Any]]]:
    """Title → modules behind the encoder, made by the library."""
    dense = importlib.import_module("sentence_transformers.base.modules.dense").Dense
    normalize = importlib.import_module("sentence_transformers.base.modules.normalize").Normalize
    pooling = importlib.import_module(
        "sentence_transformers.sentence_transformer.modules.pooling"
    ).Pooling
    for mode in pooling.POOLING_MODES:
        yield mode, [pooling(width, mode), normalize()]
    torch.manual_seed(0)
    yield "two modes", [pooling(width, ("mean", "cls"))]
    yield "dense", [pooling(width, "mean"), dense(width, 10), normalize()]


def _library_model(bare: Path, modules: list[Any]) -> Any:
    """The library's model on the twin's encoder and a tokenizer of a few words."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    sentence_transformers = importlib.import_module("sentence_transformers")
    transformer = importlib.import_module("sentence_transformers.base.modules.transformer")
    vocabulary = {word: index for index, word in enumerate(WORDS)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    special = {"unk_token": "[UNK]", "pad_token": "[PAD]", "mask_token": "[MASK]"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(bare)
    encoder = transformer.Transformer(str(bare), max_seq_length=14)
    return sentence_transformers.SentenceTransformer(
        modules=[encoder, *modules], prompts={"query": "query : "}, device="cpu"
    )


@pytest.mark.full
@pytest.mark.skipif(not HAS_LIBRARY, reason="sentence_transformers is not installed")
@pytest.mark.filterwarnings("ignore")
def test_vectors_are_those_of_the_library(bare: Path, tmp_path: Path) -> None:
    for title, modules in _library_modules(32):
        model = _library_model(bare, modules)
        folder = tmp_path / title.replace(" ", "-")
        model.save(str(folder))
        network, checkpoint = _network(folder)
        set_pooling(network, checkpoint, None)
        graphs = architecture("bert").graphs(network, None)
        found = []
        for text in TEXTS:
            ids = model.tokenizer(text)["input_ids"]
            lengths = torch.tensor([len(ids)], dtype=torch.int32)
            padded = torch.tensor([[*ids, 0, 0]])  # padding must not matter
            with torch.no_grad():
                found.append(graphs.lowerings["text"].module(padded, lengths)[0])
        want = model.encode(TEXTS, convert_to_tensor=True)
        torch.testing.assert_close(torch.stack(found), want, rtol=0, atol=1e-5, msg=title)
        assert limits(checkpoint, Limits(max_input_tokens=16)).max_input_tokens == 14


@pytest.mark.full
@pytest.mark.skipif(not HAS_LIBRARY, reason="sentence_transformers is not installed")
@pytest.mark.filterwarnings("ignore")
def test_exported_folder_embeds_as_the_library_does(bare: Path, tmp_path: Path) -> None:
    onnxruntime = importlib.import_module("onnxruntime")
    *_, (_, modules) = _library_modules(32)
    model = _library_model(bare, modules)
    model.save(str(tmp_path / "sentences"))
    repository = tmp_path / "repository"
    arguments = [str(tmp_path / "sentences"), "--repository", str(repository)]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert "pooling: mean, a linear layer, vectors of unit length (from modules.json)" in (
        result.output
    )
    bundle = newest_bundle(repository, "sentences")
    assert bundle.manifest.tasks["embed"]["prompts"]["query"] == "query : "
    assert bundle.manifest.limits.max_input_tokens == 14
    assert bundle.manifest.tokenizer is not None
    tokenizer = load_tokenizer(bundle)
    session = onnxruntime.InferenceSession(str(bundle.path("model.onnx")))
    graph = bundle.manifest.graphs["text"]
    assert graph.output(Role.EMBEDDING)
    want = model.encode(TEXTS, prompt_name="query")
    for text, vector in zip(TEXTS, want, strict=True):
        ids = tokenizer.encode("query : " + text)
        feeds = {"token_ids": np.array([ids]), "lengths": np.array([len(ids)], np.int32)}
        np.testing.assert_allclose(session.run(None, feeds)[0][0], vector, rtol=0, atol=1e-5)
