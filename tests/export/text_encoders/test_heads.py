"""Heads, pooling and segments of text encoders."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from export.config.config_reader import ConfigReader
from export.text_encoders.heads import HeadConfig, HeadKind, read_head
from export.text_encoders.network import check_segments
from export.text_encoders.pooling import Pooling, PoolingMode
from inference.errors import CheckpointError
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
