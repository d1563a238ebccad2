"""What the training scripts write beside the tokenizer: half-precision weights and a model card."""

from pathlib import Path
from string import Template

from transformers import PreTrainedModel

from export.examples.score_scenes import TEST_SCENES, TEST_SEED
from export.examples.training import Recipe

_CARD = Template("""\
---
license: apache-2.0
pipeline_tag: $pipeline
tags: [triptych, example]
---
# $name

$summary

| | |
|---|---|
| architecture | $architecture; $megabytes MB in float16 |
| first lessons | $lesson_pictures pictures, to name what covers each patch (`crowds.py`) |
| training | $pictures pictures of the training split (`scenes.py`) |
| trained by | `python -m export.examples.$script`, seed $seed, $minutes minutes on one CPU thread |

Measured by `score_scenes.py` from this folder, in float32, on $count held-out pictures (seed
$test_seed), each with a combination of attributes that training never showed:

| | |
|---|---|
$scores
""")


def save_half(model: PreTrainedModel, folder: Path) -> None:
    """Writes config, generation defaults and float16 weights; the model itself turns float16."""
    model.half().save_pretrained(folder)


def write_card(
    folder: Path,
    scores: dict[str, float],
    *,
    lessons: Recipe,
    recipe: Recipe,
    minutes: float,
    **words: str,
) -> None:
    """Writes README.md; `words` are the remaining names of the template above."""
    rows = "\n".join(f"| {name} | {100 * share:.1f} % |" for name, share in scores.items())
    card = _CARD.substitute(
        words,
        scores=rows,
        lesson_pictures=lessons.steps * lessons.batch,
        pictures=recipe.steps * recipe.batch,
        seed=recipe.seed,
        minutes=round(minutes),
        megabytes=f"{(folder / 'model.safetensors').stat().st_size / 1e6:.1f}",
        count=TEST_SCENES,
        test_seed=TEST_SEED,
    )
    (folder / "README.md").write_text(card)
