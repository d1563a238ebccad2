"""The systems of the course, from recurrence to few-shot multimodal models, as data.

`triptych compare` scores them and writes examples/history. A system is one `System` in its group's
file; a group is one file and one line here. The order is that of the page.
"""

from examples.history.system import Group
from examples.history.systems import (
    captioning,
    few_shot,
    few_shot_pictures,
    fill_mask,
    language_identification,
    language_models,
    masked_bytes,
    picture_questions,
    picture_words,
    pictures,
    retrieval,
    sentiment,
    spanish,
    tagging,
    translation,
    word_tags,
)

GROUPS: dict[str, Group] = {
    group.name: group
    for group in (
        word_tags.GROUP,
        tagging.GROUP,
        sentiment.GROUP,
        language_identification.GROUP,
        language_models.GROUP,
        translation.GROUP,
        spanish.GROUP,
        captioning.GROUP,
        fill_mask.GROUP,
        masked_bytes.GROUP,
        retrieval.RANKING,
        retrieval.PARAPHRASES,
        pictures.CLASSES,
        pictures.ZERO_SHOT,
        few_shot.GROUP,
        few_shot_pictures.GROUP,
        picture_words.GROUP,
        picture_questions.GROUP,
    )
}
