"""Measures the example ViT by `transformers` and writes its model card.

python -m examples.vit.card FOLDER
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from transformers import ViTForImageClassification
from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

from examples.training.card import score_table, write_again
from examples.training.checkpoint_folder import CardTemplate
from examples.vit.scores import (
    CLASSES,
    TEST_COUNT,
    TEST_SEED,
    AttendFunction,
    ClassifyFunction,
    attention_shares,
    class_scores,
)

_BATCH = 50
_CARD = CardTemplate("""\
pipeline_tag: image-classification
---
# example-vit

Classifies rendered scenes by colour and shape of their largest thing: one of $classes classes, such
as "red circle". A smaller thing beside it, sizes, textures and the background are no part of it.

Architecture: `ViTForImageClassification` ($shape, patches of 8 pixels), \
$parameters M parameters, $megabytes MB in float16.

Trained on pictures of the training split of `examples/scenes/scene.py`, each rendered once,
first on the labels of their patches and then on the classes; resumed runs on both:

$runs

Measured by `examples/vit/scores.py` from this folder, in float32, on $count pictures
(seed $test_seed), each with a texture that no training picture combines with its class:

| | |
|---|---|
$scores

Roll-out of the attention (Abnar & Zuidema 2020, arXiv 2005.00928) from the class token over the
patches of the same pictures, against the same share of a uniform attention:

| | |
|---|---|
$attention
""")


def write_card(folder: Path, runs: str) -> str:
    """Measures the folder, writes its README.md and returns the tables.

    `runs` has a line for each training run.
    """
    measured = Measured(folder)
    config = measured.model.config
    tables = {
        "scores": score_table(class_scores(measured.classify)),
        "attention": score_table(attention_shares(measured.attend, TEST_COUNT, TEST_SEED)),
    }
    _CARD.write(
        folder,
        tables,
        runs=runs,
        classes=len(CLASSES),
        shape=f"{config.num_hidden_layers} layers of width {config.hidden_size} with "
        f"{config.num_attention_heads} heads",
        count=TEST_COUNT,
        test_seed=TEST_SEED,
    )
    return "\n\n".join(tables.values())


class Measured:
    """The saved network as functions of pictures, by `transformers` alone, in float32."""

    def __init__(self, folder: Path) -> None:
        self.model: Any = ViTForImageClassification.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager"
        ).eval()
        self._processor = ViTImageProcessorPil.from_pretrained(folder)
        self.classify: ClassifyFunction = self._classify
        self.attend: AttendFunction = self._attend

    def _classify(self, pictures: list[Image.Image]) -> list[str]:
        labels = self.model.config.id2label
        outputs = self._outputs(pictures, False)
        return [labels[at] for output in outputs for at in output.logits.argmax(-1).tolist()]

    def _attend(self, pictures: list[Image.Image]) -> list[Any]:
        outputs = self._outputs(pictures, True)
        return [grid for output in outputs for grid in roll_out(output.attentions)]

    @torch.inference_mode()
    def _outputs(self, pictures: list[Image.Image], has_attention: bool) -> list[Any]:
        batches = [pictures[start : start + _BATCH] for start in range(0, len(pictures), _BATCH)]
        return [
            self.model(
                pixel_values=self._processor(batch, return_tensors="pt").pixel_values,
                output_attentions=has_attention,
            )
            for batch in batches
        ]


def roll_out(attentions: tuple[torch.Tensor, ...]) -> Any:
    """The class token's attention over the patches through all layers: (B, rows, columns), sum 1.

    Args:
        attentions: Each layer's weights, (B, H, 1 + N, 1 + N).
    """
    total = torch.eye(attentions[0].shape[-1])
    for weights in attentions:
        total = (weights.mean(1) + torch.eye(weights.shape[-1])) / 2 @ total
    patches = total[:, 0, 1:]
    side = int(np.sqrt(patches.shape[1]))
    return (patches / patches.sum(1, keepdim=True)).view(-1, side, side).numpy()


if __name__ == "__main__":
    write_again(write_card, __doc__)
