"""Reviews by templates: whole templates and pairs of words are kept out of training."""

from itertools import islice

from examples.history.recurrent.review_templates import FAMOUS, template_reviews

COUNT = 3000


def test_splits_share_no_review() -> None:
    train = {review.text.strip(".") for review in islice(template_reviews("train"), COUNT)}
    for split in ("compositional", "templates"):
        assert not train & {one.text.strip(".") for one in islice(template_reviews(split), COUNT)}


def test_famous_reviews_are_in_no_training_text() -> None:
    train = {review.text.strip(".").lower() for review in islice(template_reviews("train"), COUNT)}
    assert not train & set(FAMOUS)


def test_words_of_held_out_templates_are_trained_in_others() -> None:
    def words(split: str) -> set[str]:
        return {
            word
            for one in islice(template_reviews(split), COUNT)
            for word in one.text.lower().strip(".").replace(",", "").split()
        }

    assert words("templates") - words("train") == set()


def test_both_sentiments_are_as_frequent() -> None:
    drawn = [one.sentiment for one in islice(template_reviews("train"), COUNT)]
    assert 0.45 < drawn.count("positive") / COUNT < 0.55
    assert set(drawn) == {"positive", "negative"}
