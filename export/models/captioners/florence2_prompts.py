"""What Florence-2 is asked with: a sentence for each task, as its training data had it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from export.checkpoint.checkpoint import Checkpoint
from export.checkpoint.image_recipe import COMBINED_FILE
from export.tokenizer.prompt_images import leading_images

CAPTION, OBJECTS, PHRASES = "<CAPTION>", "<OD>", "<CAPTION_TO_PHRASE_GROUNDING>"
SENTENCES: Mapping[str, str] = {
    "<OCR>": "What is the text in the image?",
    "<OCR_WITH_REGION>": "What is the text in the image, with regions?",
    CAPTION: "What does the image describe?",
    "<DETAILED_CAPTION>": "Describe in detail what is shown in the image.",
    "<MORE_DETAILED_CAPTION>": "Describe with a paragraph what is shown in the image.",
    OBJECTS: "Locate the objects with category name in the image.",
    "<DENSE_REGION_CAPTION>": "Locate the objects in the image, with their descriptions.",
    "<REGION_PROPOSAL>": "Locate the region proposals in the image.",
    PHRASES: "Locate the phrases in the caption: {input}",
    "<REFERRING_EXPRESSION_SEGMENTATION>": "Locate {input} in the image with mask",
    "<REGION_TO_SEGMENTATION>": "What is the polygon mask of region {input}",
    "<OPEN_VOCABULARY_DETECTION>": "Locate {input} in the image.",
    "<REGION_TO_CATEGORY>": "What is the region {input}?",
    "<REGION_TO_DESCRIPTION>": "What does the region {input} describe?",
    "<REGION_TO_OCR>": "What text is in the region {input}?",
}
"""Task → the sentence that its training data asked for it with (`Florence2Processor`)."""
CONTROL_TOKENS = frozenset({"<s>", "</s>", "<pad>", "<unk>", "<mask>", "<image>"})
"""All others, `<loc_0>` to `<loc_999>` and `<poly>` among them, are parts of an answer."""


def prompts(network: Any, checkpoint: Checkpoint) -> Mapping[str, Any]:
    """`images` of a section, with the sentences of tasks."""
    places = leading_images(network, checkpoint)["images"]
    return {"images": {**places, "sentences": SENTENCES}}


def captions(network: Any, checkpoint: Checkpoint) -> Mapping[str, Any]:
    """The section of `caption`."""
    return {**prompts(network, checkpoint), "prompt": CAPTION}


def boxes(network: Any, checkpoint: Checkpoint) -> Mapping[str, Any]:
    """The section of `detect`, with the phrases that the checkpoint's processor leaves out."""
    rules = checkpoint.json(COMBINED_FILE).get("post_processor_config") or {}
    ignored = (rules.get("phrase_grounding") or {}).get("banned_grounding_tokens") or ()
    asked = {"prompt": OBJECTS, "labelled": PHRASES, "ignored": list(dict.fromkeys(ignored))}
    return {**prompts(network, checkpoint), **asked}
