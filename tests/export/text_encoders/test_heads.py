"""Heads as `config.json` names them, with the tasks, labels and activations that follow."""

from __future__ import annotations

from typing import Any

import pytest

from export.config.config_reader import ConfigReader
from export.text_encoders.heads import HeadConfig, HeadKind, read_head
from inference.errors import CheckpointError


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
    with pytest.raises(CheckpointError, match=r"BertForQuestionAnswering.*BertForMaskedLM"):
        _head(architecture="BertForQuestionAnswering")


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
