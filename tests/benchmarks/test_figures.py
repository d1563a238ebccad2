"""The figures of `examples/attention`: their data, their command, and the page's numbers."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from benchmarks.figures import NAMES, learned, masks, memory, pictures, relative, rotary, words
from benchmarks.figures.__main__ import FACTS, IMAGES, PROCESSORS, ROOT, main, record
from benchmarks.figures.figure import figure, picture
from benchmarks.harness.machine import processor
from export.layers.attention.rotary import Rotary

LOCAL = [name for name in NAMES if not figure(name).is_served and not figure(name).is_timed]
RECORDED = json.loads(FACTS.read_text(encoding="utf-8"))


@cache
def data(name: str) -> Any:
    return figure(name).measure()


@pytest.mark.parametrize("name", LOCAL)
def test_recorded_numbers_are_measured_again(name: str) -> None:
    found = figure(name).facts(data(name))
    assert found.keys() == RECORDED[name].keys()
    for what, value in found.items():
        assert number(value) == pytest.approx(number(RECORDED[name][what]), rel=0.06, abs=0.011), (
            what
        )


def number(text: str) -> float:
    return float(text.rstrip(" %").replace(",", ""))


def test_the_command_writes_a_picture_and_its_numbers(tmp_path: Path) -> None:
    main(["masks", "--folder", str(tmp_path), "--facts", str(tmp_path / "facts.json")])
    with Image.open(picture(tmp_path, "masks")) as image:
        assert min(image.size) > 300
    found = json.loads((tmp_path / "facts.json").read_text())
    assert found.keys() == {"masks", PROCESSORS}
    assert found[PROCESSORS] == {"masks": processor()}


def test_unknown_figure_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["nothing", "--folder", str(tmp_path)])
    assert "nothing" in capsys.readouterr().err
    with pytest.raises(KeyError, match="nothing"):
        figure("nothing")


def test_numbers_of_other_figures_are_kept_in_the_order_of_the_page(tmp_path: Path) -> None:
    path = tmp_path / "facts.json"
    for name in ("rotary", "masks", "rotary"):
        record(path, name, {"of": name})
    assert list(json.loads(path.read_text())) == ["masks", "rotary", PROCESSORS]


@pytest.mark.parametrize("name", LOCAL)
def test_figure_is_drawn(name: str) -> None:
    from matplotlib import pyplot

    drawn = figure(name).draw(data(name))
    assert drawn.axes
    pyplot.close(drawn)


class TestMasks:
    def test_causal_is_lower_triangular(self) -> None:
        causal = data("masks").causal
        assert torch.equal(causal, causal.tril())
        assert causal.tril().sum() == masks.SIZE * (masks.SIZE + 1) / 2

    def test_windows_bound_the_distance(self) -> None:
        window, both = data("masks").window, data("masks").neighbours
        assert window.sum(dim=1).tolist() == [min(i + 1, masks.WINDOW) for i in range(masks.SIZE)]
        assert torch.equal(both, window | window.T)

    def test_padding_hides_the_same_keys_of_every_query(self) -> None:
        assert data("masks").padding.sum(dim=1).unique().tolist() == [masks.LENGTH]

    def test_the_prefix_sees_itself_and_no_token(self) -> None:
        prefix = data("masks").prefix
        assert prefix[: masks.PREFIX, : masks.PREFIX].all()
        assert not prefix[: masks.PREFIX, masks.PREFIX :].any()

    def test_a_word_sees_the_last_image_alone(self) -> None:
        seen = masks.last_image(["a", masks.IMAGE, "b", masks.IMAGE, "c"], 2)
        assert seen.int().tolist() == [
            [0, 0, 0, 0], [1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 1], [0, 0, 1, 1],
        ]  # fmt: skip


class TestPositions:
    def test_products_of_sinusoids_depend_on_the_distance_alone(self) -> None:
        products = data("sinusoids").products
        for distance in (0, 1, 17, 90):
            assert np.ptp(np.diag(products, distance)) < 1e-4

    def test_rotary_products_depend_on_the_distance_alone(self) -> None:
        products = data("rotary").random
        assert np.ptp(products, axis=0).max() < 1e-3
        assert np.ptp(products, axis=1).min() > 1

    def test_longest_turn_is_that_of_the_last_frequency(self) -> None:
        turns = rotary.wavelengths(Rotary(8, 2, base=16.0))
        assert turns == pytest.approx(2 * np.pi * 16.0 ** (np.arange(4) / 4), rel=1e-5)

    def test_buckets_with_one_distance_and_the_last_are_counted(self) -> None:
        distances, buckets = np.arange(-5, 3), np.array([3, 3, 2, 2, 1, 0, 7, 7])
        assert relative.own(distances, buckets) == 2
        assert relative.last(distances, buckets) == 4

    def test_cosines_of_mirrored_and_neighbouring_patches(self) -> None:
        vectors = np.array([[1, 0], [0, 1], [1, 0], [0, -1]], float)  # of a 2 x 2 grid
        grid = (vectors @ vectors.T).reshape(2, 2, 2, 2)
        assert learned.mirrored(grid) == pytest.approx(0)
        assert learned.beside(grid) == pytest.approx((0 + 0 + 1 - 1) / 4)


class TestAttention:
    @pytest.mark.parametrize("name", ["steps", "heads"])
    def test_weights_sum_to_one_and_see_no_later_token(self, name: str) -> None:
        weights = data(name).weights
        assert weights.sum(axis=-1) == pytest.approx(1.0, abs=1e-5)
        assert not np.triu(weights, 1).any()

    def test_variance_of_unscaled_scores_is_the_width(self) -> None:
        found = data("scaling")
        assert found.raw.variance == pytest.approx(np.array(_widths()), rel=0.05)
        assert found.scaled.variance == pytest.approx(1.0, rel=0.05)

    def test_the_answer_follows_the_arrow_of_the_same_word(self) -> None:
        heads = data("heads")
        assert heads.tokens[heads.answer - 1] == " =>"
        assert heads.tokens[heads.answer] == " jod"


def _widths() -> tuple[int, ...]:
    from benchmarks.figures.scaling import WIDTHS

    return WIDTHS


class TestMemory:
    def test_gpt2_keeps_two_vectors_a_layer(self) -> None:
        assert data("memory")["openai-community/gpt2"].position_bytes == 2 * 12 * 768 * 4

    def test_windows_save_nothing_before_they_are_full(self) -> None:
        cache = memory.Cache(4, 1, 1000, (10, None))
        assert cache.windowed_bytes(10) == cache.bytes(10) == 10_000
        assert cache.windowed_bytes(20) == 500 * 10 + 500 * 20
        assert cache.kind == "MQA"
        assert cache.unshared_bytes == 4000


class TestWords:
    TOKENS = ["El", " ga", "to", ".", "</s>"]

    def test_rows_of_a_word_are_averaged_and_columns_added(self) -> None:
        weights = np.eye(5)
        texts, rows = words.by_row(self.TOKENS, weights)
        assert texts == ["El", "gato.", "</s>"]
        assert rows.sum(axis=1) == pytest.approx(1.0)
        assert rows[1].tolist() == pytest.approx([0, 1 / 3, 1 / 3, 1 / 3, 0])
        assert words.by_column(self.TOKENS, rows).tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 1]]


def test_a_picture_is_pale_where_the_weights_are_small() -> None:
    black = Image.new("RGB", (4, 4))
    lit = pictures.lit(black, [[1.0, 0.0], [0.0, 0.5]])
    assert lit[0, 0].tolist() == [0, 0, 0]
    assert lit[0, 3, 0] > lit[3, 3, 0] > 0.3


@pytest.mark.full
def test_a_step_with_a_cache_has_the_logits_of_one_without() -> None:
    from benchmarks.figures import cache as figure_of_caches

    assert figure_of_caches.measure((16, 40)).difference < 1e-5


PAGE = ROOT / "examples" / "attention" / "README.md"
TEXT = PAGE.read_text(encoding="utf-8")
LARGEST_BYTES = 150_000
FIGURE = re.compile(r"^!\[[^\]]+\]\(images/attention-([\w-]+)\.png\)$", re.MULTILINE)
NOT_STATED = re.compile(
    r"```.*?```|\$\$.*?\$\$|\$`?[^$\n]+`?\$|`[^`\n]+`"  # code and formulas
    r"|§\s?[\d.]+|arXiv\s+\d{4}\.\d{4,5}",  # sources
    re.DOTALL,
)
STATED = re.compile(r"(?<![\w.,-])-?\d[\d,]*\.\d+(?: ?%)?|(?<![\w.,-])\d+ ?%")


def numbers(text: str) -> set[str]:
    """Decimal fractions and percentages of a text, apart from formulas, code and sources."""
    plain = NOT_STATED.sub(" ", text)
    return {found.replace(" ", "") for found in STATED.findall(plain)}


def test_the_page_shows_every_figure_once() -> None:
    assert sorted(FIGURE.findall(TEXT)) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_figure_exists_is_small_and_has_its_command(name: str) -> None:
    path = picture(IMAGES, name)
    assert path.stat().st_size <= LARGEST_BYTES
    with Image.open(path) as image:
        assert image.format == "PNG"
    assert f"`python -m benchmarks.figures {name}`" in TEXT


@pytest.mark.parametrize("name", NAMES)
def test_the_page_states_the_recorded_numbers_of_a_figure(name: str) -> None:
    missing = {what: value for what, value in RECORDED[name].items() if value not in TEXT}
    assert missing == {}


def test_every_fraction_and_percentage_of_the_page_is_recorded() -> None:
    known = {value.replace(" ", "") for facts in RECORDED.values() for value in facts.values()}
    assert numbers(TEXT) - known == set()


def test_numbers_are_found_outside_formulas_and_sources() -> None:
    text = "A share of 12.5 % (§3.2, arXiv 1706.03762), $0.5$, `1.5`, 7 % and -0.03, not Llama-3.2."
    assert numbers(text) == {"12.5%", "7%", "-0.03"}
