"""examples/history is what the list of the course's systems and the recorded figures make of it."""

from benchmarks.history import page


def test_page_is_that_of_the_list_and_the_recorded_figures() -> None:
    assert page.PAGE.read_text(encoding="utf-8") == page.text(), "run `triptych compare --render`"
