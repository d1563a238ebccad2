"""Models that find an answer or a paraphrase among texts."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from examples.bert.scores import DOCUMENTS, TEST_SEED, paraphrase_top1, ranking_top1
from examples.history import task_requests
from examples.history.system import Ask, Group, Measure, System, percent


def _rank(ask: Ask, query: str, documents: list[str]) -> int:
    (item,) = ask("rerank", {"query": query, "documents": documents})
    return int(item.results[0].index)


def _embed(ask: Ask, texts: list[str]) -> NDArray[Any]:
    return np.array([item.embedding for item in task_requests.items(ask, "embed", "texts", texts)])


RANKING = Group(
    name="ranking",
    title="The document that answers",
    story=f"""Questions about the facts of `examples/bert/facts.py`, with {DOCUMENTS}
documents each that share almost every word.""",
    systems=(
        System(
            checkpoint="example-bert-rerank",
            title="BERT as a cross-encoder",
            year=2019,
            paper="Nogueira and Cho, arXiv 1901.04085",
            idea="Query and document are read together, and one score ranks the documents.",
            command="python -m examples.bert.train --only example-bert-rerank",
        ),
    ),
    measures=(
        Measure(
            "answer first %, withheld pairs",
            percent(ranking_top1, _rank, TEST_SEED, "compositional"),
        ),
    ),
)

PARAPHRASES = Group(
    name="paraphrases",
    title="The nearest sentence",
    story="""Paraphrases of the facts of `examples/bert/facts.py` among near misses, which
share more words with the sentence than its paraphrase does.""",
    systems=(
        System(
            checkpoint="example-bert-embed",
            title="Sentence-BERT",
            year=2019,
            paper="Reimers and Gurevych, arXiv 1908.10084",
            idea="A sentence is one vector, and a cosine compares two of them.",
            command="python -m examples.bert.train --only example-bert-embed",
        ),
    ),
    measures=(
        Measure(
            "nearest %, withheld pairs",
            percent(paraphrase_top1, _embed, TEST_SEED, "compositional"),
        ),
    ),
)
