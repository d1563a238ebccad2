"""Each panel's main job, with the example models."""

from __future__ import annotations

import re

import pytest

from tests.e2e.page.conftest import OpenPage
from triptych import Client

pytestmark = pytest.mark.integration

FRENCH = "L'accord sur la zone économique européenne a été signé en août 1992."


def test_every_served_task_has_a_tab_and_nothing_comes_from_elsewhere(open_page: OpenPage) -> None:
    screen = open_page("translate")
    tabs = screen.page.get_by_role("tab")
    tabs.first.wait_for()
    assert tabs.all_inner_texts() == [
        "Translate", "Caption", "Zero-shot", "Generate", "Chat",
        "Fill mask", "Tag", "Classify", "Embed", "Rerank", "Answer", "Score",
    ]  # fmt: skip
    assert len(screen.hosts) == 1


def test_translation_lights_up_its_alignment(open_page: OpenPage) -> None:
    screen = open_page("translate")
    screen.example("A famous sentence (English to French)")
    assert screen.text == FRENCH
    assert screen.field("Model").input_value() == "example-en-fr"
    source = screen.answer.get_by_role("toolbar", name="Words of the source")
    target = screen.answer.get_by_role("toolbar", name="Words of the translation")
    assert source.get_by_role("button").all_inner_texts()[4:7] == ["European", "Economic", "Area"]
    target.get_by_role("button", name="économique").hover()
    readout = screen.answer.locator(".readout")
    assert readout.inner_text().startswith("“économique” looks at “Economic” 9")
    lit = screen.answer.locator(".heatmap th.lit")
    assert lit.all_inner_texts() == ["économique"]
    source.get_by_role("button", name="European").hover()
    assert "“European” is looked at by “européenne”" in readout.inner_text()
    cell = screen.answer.get_by_role("gridcell", name=re.compile("^zone, Area: 9"))
    cell.hover()
    assert readout.inner_text().startswith("“zone” looks at “Area”: 9")


def test_translation_keeps_paragraphs_and_follows_the_languages(open_page: OpenPage) -> None:
    screen = open_page("translate")
    screen.example("Two paragraphs")
    assert screen.text.startswith("My sister works in a famous restaurant.")
    assert "\n\n" in screen.text
    assert screen.field("Languages").input_value() == "es en"
    screen.field("Model").select_option("example-en-fr")
    assert screen.field("Languages").input_value() == "en fr"


def test_caption_shows_where_each_word_looks(open_page: OpenPage) -> None:
    screen = open_page("caption")
    screen.field("Model").select_option("example-show-attend-tell")
    screen.run()
    assert screen.text.startswith("a small yellow checked circle above")
    readout = screen.answer.locator(".readout")
    screen.answer.get_by_role("button", name="circle").hover()
    assert readout.inner_text().startswith("“circle” looks most at the top")
    screen.answer.get_by_role("button", name="cross").hover()
    assert re.search("at the (centre|middle|bottom)", readout.inner_text())
    veil = "c => [...c.getContext('2d').getImageData(0, 0, 8, 8).data].filter((_, i) => i % 4 == 3)"
    opacities = screen.answer.locator("canvas").first.evaluate(veil)
    assert min(opacities) == 0  # the region of the largest weight is not dimmed
    assert max(opacities) > 100
    screen.answer.get_by_text("Every word at once").click()
    every_word = screen.answer.locator(".every-word li")
    every_word.last.wait_for()
    assert every_word.count() == 15


def test_captions_are_sampled(open_page: OpenPage) -> None:
    screen = open_page("caption")
    screen.field("Model").select_option("example-show-attend-tell")
    screen.panel.get_by_text("Options", exact=True).click()
    for label, value in {"Captions": "3", "Top p": "0.95", "Temperature": "2", "Seed": "7"}.items():
        screen.field(label).fill(value)
    screen.run()
    assert screen.answer.locator("ol.others li").count() == 2
    assert screen.answer.locator(".readout").count() == 1  # the attention of the best
    python = screen.code("Python")
    assert all(part in python for part in ("n=3", "top_p=0.95", "temperature=2", "seed=7"))


def test_zero_shot_ranks_edited_labels(open_page: OpenPage) -> None:
    screen = open_page("zero-shot")
    screen.example("One word differs")
    bars = screen.answer.locator(".bars li")
    assert bars.count() == 5
    assert bars.first.inner_text().startswith("large red heart")
    screen.field("label 1").fill("large orange crescent")
    screen.press("Remove label 2")
    screen.press("Add label")
    screen.page.keyboard.type("blue ring")
    screen.field("Template").fill("a {}\na photo of a {}")
    screen.press("a large orange checked crescent on a black background")
    screen.panel.get_by_role("button", name="Remove scene-5.jpg").wait_for()
    screen.run()
    assert bars.count() == 5
    assert bars.first.inner_text().startswith("large orange crescent")
    assert '"blue ring"' in screen.code("Python")


def test_pictures_are_dropped_pasted_and_chosen(open_page: OpenPage) -> None:
    screen = open_page("caption")
    names = screen.panel.locator(".chosen img")
    names.first.wait_for()
    screen.give("drop", "dropped.png", scene="scene-4.png")
    screen.give("paste", "pasted.png", scene="scene-4.png")
    pixel = bytes.fromhex("ffd8ffe0")
    picked = {"name": "broken.jpg", "mimeType": "image/jpeg", "buffer": pixel}
    screen.panel.locator("input[type=file]").set_input_files(picked)
    chosen = [image.get_attribute("alt") for image in names.all()]
    assert chosen == ["dropped.png", "pasted.png", "broken.jpg"]
    screen.run()
    items = screen.answer.locator("article")
    assert items.count() == 3
    assert "large red heart" in items.nth(0).inner_text()
    assert "large red heart" in items.nth(1).inner_text()
    assert "No result" in items.nth(2).inner_text()  # an item's own error, in its place


def test_generation_streams_below_examples(open_page: OpenPage) -> None:
    screen = open_page("generate")
    screen.example("A code from four examples")
    assert screen.text == "dovfen ⇒ murgav"
    assert screen.panel.get_by_text("Pictures of the prompt").is_hidden()
    assert "Ended by the model or a stop string." in screen.answer.inner_text()
    assert screen.field("The whole prompt").inner_text().endswith("sovgav => gimjem\ndovfen =>")
    screen.field("Prompt").fill("jodsax")
    screen.run()
    assert screen.text == "jodsax ⇒ jodtek"


def test_generation_obeys_stop_strings_and_seed(open_page: OpenPage) -> None:
    screen = open_page("generate")
    screen.panel.get_by_text("Options", exact=True).click()
    screen.field("Seed").fill("4")
    screen.run()
    first = screen.text
    screen.run()
    assert screen.text == first
    assert " background" in first
    screen.press("Add stop string")
    screen.page.keyboard.type(" background")
    screen.run()
    assert screen.text == first.split(" background")[0]


def test_masks_are_filled(open_page: OpenPage) -> None:
    screen = open_page("fill-mask")
    screen.example("One verb, three subjects")
    best = screen.answer.locator(".best .bar-label").all_inner_texts()
    assert best == ["am", "is", "are"]
    screen.field("Texts, one a line").fill("")
    screen.field("Texts, one a line").press_sequentially("The cat ")
    screen.press("Insert [MASK]")
    assert screen.field("Texts, one a line").input_value() == "The cat [MASK]"


def test_tags_are_marked_in_the_text(open_page: OpenPage) -> None:
    screen = open_page("tag")
    text = screen.field("Texts, one a line")
    text.fill("😀 Last Friday, Kugfen sold a big lamp in Sovsub.")
    screen.run()
    marks = screen.answer.locator("mark").all_text_contents()
    assert {"Kugfen (PERSON)", "a big lamp (THING)", "Sovsub (PLACE)"} <= set(marks)
    assert screen.text.startswith("😀 ")


def test_texts_pairs_and_pictures_are_classified(open_page: OpenPage) -> None:
    screen = open_page("classify")
    screen.example("Three reviews")
    best = screen.answer.locator(".best .bar-label")
    assert best.all_inner_texts() == ["positive", "negative", "neutral"]
    screen.example("A picture's largest thing")
    assert best.all_inner_texts() == ["yellow crescent"]
    assert screen.answer.locator("canvas").count() == 1
    screen.example("Question and answer")
    assert best.all_inner_texts() == ["relevance"]
    kinds = screen.panel.get_by_role("combobox", name="Classify", exact=True).locator("option")
    assert kinds.all_inner_texts() == ["texts", "pairs of texts"]


def test_similar_texts_are_found(open_page: OpenPage) -> None:
    screen = open_page("embed")
    screen.example("Paraphrases")
    assert "“Ana visited Pedro in Rome yesterday.” and “Yesterday, Pedro" in screen.text
    assert screen.answer.locator(".heatmap td[aria-label]").count() == 16


def test_similar_pictures_are_found(open_page: OpenPage) -> None:
    screen = open_page("embed")
    screen.example("Three pictures")
    assert screen.text.startswith("“scene-1.png” and “scene-3.png” are nearest")
    assert screen.answer.locator("img").count() == 3
    assert screen.answer.locator(".heatmap td[aria-label]").count() == 9
    assert 'images=["scene-1.png", "scene-3.png", "scene-5.jpg"]' in screen.code("Python")


def test_documents_are_ranked(open_page: OpenPage) -> None:
    screen = open_page("rerank")
    screen.example("Who sold the lamp?")
    best = screen.answer.locator(".bar-label").first
    assert best.inner_text() == "Last Friday, the old lamp was sold in Paris by Ana."


def test_answers_are_marked_in_their_passages(open_page: OpenPage) -> None:
    screen = open_page("answer")
    screen.example("Where was it found?")
    assert screen.answer.locator("mark").all_inner_texts() == ["Kugfen"]
    screen.example("No answer")
    assert screen.answer.locator("mark").count() == 0
    assert screen.answer.locator("li").first.inner_text().startswith("no answer")


def test_translation_has_the_terms_of_the_page(open_page: OpenPage) -> None:
    screen = open_page("translate")
    screen.example("With a glossary")
    assert "diner" in screen.text
    assert "{name}" in screen.text
    assert '"glossary": {"restaurante":"diner"}' in screen.code("curl")
    assert 'glossary={"restaurante": "diner"}' in screen.code("Python")
    assert screen.field("Stored glossary").is_hidden()
    screen.field("rendering of term 1").fill("")
    screen.panel.locator(".primary").click()
    assert "has no rendering" in screen.problem()


def test_stored_glossary_is_chosen(open_page: OpenPage, client: Client) -> None:
    client.put_glossary("kitchen", {"restaurante": "eatery"}, source="es", target="en")
    try:
        screen = open_page("translate")
        screen.example("Two paragraphs")
        assert "eatery" not in screen.text
        screen.panel.get_by_text("Terms", exact=True).click()
        screen.field("Stored glossary").select_option(label="kitchen (es–en, 1 term)")
        screen.run()
        assert screen.text.count("eatery") == 2
        assert '"glossary_name": "kitchen"' in screen.code("curl")
    finally:
        client.delete_glossary("kitchen")


@pytest.mark.parametrize(
    ("example", "best", "model"),
    [
        ("Which translation?", "Where is Pedro's black cat?", "example-es-en"),
        ("Which caption?", "a large yellow checked crescent above", "example-captioner"),
        ("What comes next?", " ring on a cyan background", "example-gpt"),
    ],
)
def test_scores_are_ranked(open_page: OpenPage, example: str, best: str, model: str) -> None:
    screen = open_page("score")
    screen.example(example)
    assert screen.field("Model").input_value() == model
    bars = screen.answer.locator(".bars li")
    assert bars.count() == 3
    assert bars.first.locator(".bar-label").text_content().startswith(best)
    assert re.search(r"a token; least expected: “.+” -?\d", bars.first.inner_text())
    assert "client.score(" in screen.code("Python")


def test_pasted_pictures_have_names_of_their_own(open_page: OpenPage) -> None:
    screen = open_page("caption")
    for scene in ("scene-3.png", "scene-4.png"):
        screen.give("paste", "image.png", scene=scene)
    names = re.findall(r"images=@(\S+)", screen.code("curl"))
    assert len(names) == len(set(names)) == 2


def test_a_conversation_goes_on(open_page: OpenPage) -> None:
    screen = open_page("chat")
    sent: list[dict[str, list[dict[str, str]]]] = []
    screen.page.on(
        "request", lambda request: request.method == "POST" and sent.append(request.post_data_json)
    )
    screen.field("Tokens at most").fill("4")
    screen.field("Message").fill("one two")
    screen.run()
    assert screen.answer.locator(".turn.user p").all_inner_texts() == ["one two"]
    assert screen.field("Message").input_value() == ""
    screen.field("Message").fill("three")
    screen.run()
    assert [turn["role"] for turn in sent[-1]["messages"]] == ["user", "assistant", "user"]
    assert screen.answer.locator(".turn.user p").all_inner_texts() == ["one two", "three"]
    screen.press("Start over")
    screen.field("Message").fill("four")
    screen.run()
    assert [turn["content"] for turn in sent[-1]["messages"]] == ["four"]


@pytest.mark.parametrize(
    ("example", "shown", "answer"),
    [
        ("What was told before", [], "Your car is red."),
        ("Answers in Spanish", ["Answer in Spanish."], "Vives en Londres."),
        ("What was not told", [], "You have not told me."),
    ],
)
def test_examples_continue_a_conversation(
    open_page: OpenPage, example: str, shown: list[str], answer: str
) -> None:
    screen = open_page("chat")
    screen.example(example)
    assert screen.answer.locator(".turn.system p").all_inner_texts() == shown
    assert screen.answer.locator(".turn.user p").count() == 2
    assert answer in screen.answer.inner_text()
    assert "client.chat_stream(" in screen.code("Python")


def test_a_picture_stays_in_the_conversation(open_page: OpenPage) -> None:
    screen = open_page("chat")
    screen.example("A question about a picture")
    assert screen.answer.locator("img.inline-picture").count() == 1
    assert "yellow" in screen.answer.inner_text()
    assert 'images="scene-1.png"' in screen.code("Python")
    screen.field("Message").fill("What colour is the cross?")
    screen.run()
    assert screen.answer.locator("img.inline-picture").count() == 1
    assert "white" in screen.answer.locator(".streamed").inner_text()
    screen.field("Message").fill("<image>")
    screen.press("Send")
    assert "The message has 1 <image> place and no pictures" in screen.problem()
    screen.press("Start over")
    screen.field("Message").fill("Hello")
    screen.run()
    assert screen.answer.locator("img.inline-picture").count() == 0
