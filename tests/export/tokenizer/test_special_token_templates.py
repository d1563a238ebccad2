"""Random texts as a tokenizer completes them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from export.parity.parity_inputs import Probe, stateless_feeds
from export.tokenizer.special_token_templates import Framing
from inference.processing.text import FastTokenizer
from tests.export.example_bundles import example_bundle


def _special(folder: Path) -> dict[str, int]:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return {name: tokenizer.token_to_id(f"[{name}]") for name in ("CLS", "SEP", "MASK")}


def test_texts_begin_and_end_with_the_special_tokens(tmp_path: Path) -> None:
    bundle = example_bundle("example-bert-sentiment", tmp_path)
    framing, special = Framing.of(bundle), _special(tmp_path)
    graph = bundle.manifest.graphs["text"]
    feeds = stateless_feeds(graph, bundle.manifest, Probe(300, 300, framing=framing), 5, 2)
    tokens, lengths = feeds["token_ids"], feeds["lengths"]
    assert lengths.min() == 3  # one token between [CLS] and [SEP]
    assert (tokens[:, 0] == special["CLS"]).all()
    assert (tokens[np.arange(5), lengths - 1] == special["SEP"]).all()
    assert not feeds["segments"].any()


def test_a_reranker_reads_pairs_with_their_segments(tmp_path: Path) -> None:
    bundle = example_bundle("example-bert-rerank", tmp_path)
    framing, special = Framing.of(bundle), _special(tmp_path)
    graph = bundle.manifest.graphs["text"]
    feeds = stateless_feeds(graph, bundle.manifest, Probe(300, 300, framing=framing), 1, 11)
    tokens, segments = feeds["token_ids"][0], feeds["segments"][0]
    assert segments.tolist() == [0] * 6 + [1] * 5
    assert tokens[[0, 5, 10]].tolist() == [special["CLS"], special["SEP"], special["SEP"]]


def test_scored_positions_hold_the_mask(tmp_path: Path) -> None:
    bundle = example_bundle("example-bert", tmp_path)
    graph, special = bundle.manifest.graphs["text"], _special(tmp_path)
    probe = Probe(300, 300, framing=Framing.of(bundle))
    feeds = stateless_feeds(graph, bundle.manifest, probe, 3, 9)
    at = np.take_along_axis(feeds["token_ids"], feeds["positions"], axis=1)
    assert (at == special["MASK"]).all()
    assert (feeds["positions"] >= 1).all()
    assert (feeds["positions"] < feeds["lengths"][:, None] - 1).all()


def test_a_framed_text_has_the_ids_that_the_tokenizer_gives(tmp_path: Path) -> None:
    bundle = example_bundle("example-bert-rerank", tmp_path)
    framing, spec = Framing.of(bundle), bundle.manifest.tokenizer
    assert spec is not None
    pair = FastTokenizer(spec, tmp_path).encode_text("Ana", "Pedro sings")
    content = [index for index, of in zip(pair.ids, pair.sequences, strict=True) if of is not None]
    first = sum(sequence == 0 for sequence in pair.sequences)
    drawn = np.array(content + [7] * (len(pair) - len(content)))
    ids, segments = framing.classified.filled(drawn)
    if 2 * first in (len(content), len(content) + 1):  # split in the middle
        assert (ids.tolist(), segments.tolist()) == (list(pair.ids), list(pair.segments))
    assert len(ids) == len(segments) == len(pair)


def test_images_and_bundles_without_pairs_have_no_framing(tmp_path: Path) -> None:
    assert Framing.of(example_bundle("example-vit", tmp_path)) is None
