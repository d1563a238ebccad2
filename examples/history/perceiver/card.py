"""Measures the example Perceiver by `transformers` and writes its model card.

python -m examples.history.perceiver.card FOLDER
"""

from pathlib import Path
from typing import Any

import torch
from PIL import Image
from transformers import PerceiverConfig, PerceiverForImageClassificationConvProcessing
from transformers.models.perceiver.image_processing_pil_perceiver import PerceiverImageProcessorPil

from examples.training.card import score_table, write_again
from examples.training.checkpoint_folder import CardTemplate
from examples.vit.scores import CLASSES, TEST_COUNT, TEST_SEED, ClassifyFunction, class_scores
from export.training.functions import in_batches

_CARD = CardTemplate("""\
pipeline_tag: image-classification
---
# history-perceiver

Classifies rendered scenes by colour and shape of their largest thing, as `example-vit` does: one of
$classes classes, such as "red circle".

Architecture: `PerceiverForImageClassificationConvProcessing` ($shape), \
$parameters M parameters, $megabytes MB in float16.

The layers between the latents began as those of `example-vit`, the latents as its positions
(`examples/history/perceiver/train.py`). Trained on pictures of the training split
of `examples/scenes/scene.py`, first so that the latents, once they have read a picture, are
what the ViT computes from its patches, then all of it on the classes:

$runs

Measured by `examples/vit/scores.py` from this folder, in float32, on $count pictures
(seed $seed), each with a texture that no training picture combines with its class:

| | |
|---|---|
$scores
""")


def write_card(folder: Path, runs: str) -> str:
    """Measures the folder, writes its README.md and returns the table.

    `runs` has a line for each training run.
    """
    table = score_table(class_scores(classifier(folder)))
    config = PerceiverConfig.from_pretrained(folder)
    _CARD.write(
        folder,
        runs=runs,
        scores=table,
        classes=len(CLASSES),
        shape=f"{config.num_latents} latents of width {config.d_latents}, "
        f"{config.num_self_attends_per_block} layers between them",
        count=TEST_COUNT,
        seed=TEST_SEED,
    )
    return table


def classifier(folder: Path) -> ClassifyFunction:
    """The class of each picture, by `transformers` alone, in float32."""
    network: Any = PerceiverForImageClassificationConvProcessing
    model = network.from_pretrained(folder, dtype=torch.float32).eval()
    processor = PerceiverImageProcessorPil.from_pretrained(folder)

    @torch.inference_mode()
    def classify(pictures: list[Image.Image]) -> list[str]:
        pixels = processor(pictures, return_tensors="pt").pixel_values
        best = model(pixel_values=pixels).logits.argmax(-1).tolist()
        return [model.config.id2label[index] for index in best]

    return in_batches(classify)


if __name__ == "__main__":
    write_again(write_card, __doc__)
