import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.errors import InvalidRequest
from inference.processing.text import FastTokenizer
from inference.tasks.generation.fewshot import header, laid_out
from tests.inference.processing.test_text import byte_level
from triptych.tasks.generate import Example

SHOTS = [Example(input=" sea otter", output="loutre de mer "), Example(input="a", output="b")]


def test_the_layout_to_the_letter() -> None:
    made = header("Translate English to French:\n", SHOTS)
    assert made == "Translate English to French:\n\nsea otter => loutre de mer\na => b\n"
    assert laid_out(made, " cheese ", "prompts.0") == made + "cheese =>"


@pytest.mark.parametrize("instruction", [None, "", "  \n"])
def test_without_instruction_the_examples_begin(instruction: str | None) -> None:
    assert header(instruction, SHOTS[1:]) == "a => b\n"
    assert header(instruction, []) == ""


def test_an_instruction_may_have_several_lines() -> None:
    assert header("one\ntwo", []) == "one\ntwo\n\n"


@pytest.mark.parametrize("text", ["a\nb", "a\r\nb", "a\u2028b", "", " \n"])
def test_line_break_is_refused_by_name(text: str) -> None:
    for made, field in (
        (lambda: header(None, [SHOTS[0], Example(input=text, output="x")]), "examples.1.input"),
        (lambda: header(None, [Example(input="x", output=text)]), "examples.0.output"),
        (lambda: laid_out("a => b\n", text, "prompts.2"), "prompts.2"),
    ):
        with pytest.raises(InvalidRequest, match=field) as caught:
            made()
        assert caught.value.field == field


lines = st.text(alphabet=st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"]), max_size=8)
words = lines.filter(str.strip)


@given(words, words, words, words)
def test_prompts_of_one_header_share_its_tokens(
    tokenizer: FastTokenizer, instruction: str, given_: str, answer: str, prompt: str
) -> None:
    made = header(instruction, [Example(input=given_, output=answer)])
    alone = tokenizer.encode(made, add_special_tokens=False)
    whole = tokenizer.encode(laid_out(made, prompt, ""), add_special_tokens=False)
    assert whole[: len(alone)] == alone


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> FastTokenizer:
    folder = tmp_path_factory.mktemp("fast")
    return FastTokenizer(byte_level(folder), folder)
