"""The systems of the course, from recurrence to few-shot multimodal models, as data.

`triptych compare` scores them and writes examples/history. A system is one `System` of its
group; a group is one constant and one line here. The order is that of the page.
"""

from examples.history.system import Group
from examples.history.systems import images, labels, writers

GROUPS: dict[str, Group] = {
    group.name: group
    for group in (
        labels.PARTS_OF_SPEECH,
        labels.ROLES,
        labels.SENTIMENT,
        labels.LANGUAGES,
        writers.LANGUAGE_MODELS,
        writers.GAZETTE,
        writers.SPANISH,
        images.CAPTIONS,
        labels.MASKED_WORDS,
        labels.MASKED_BYTES,
        labels.RANKING,
        labels.PARAPHRASES,
        images.CLASSES,
        images.ZERO_SHOT,
        writers.FEW_SHOT,
        images.FEW_SHOT,
        images.WORDS,
        images.QUESTIONS,
    )
}
