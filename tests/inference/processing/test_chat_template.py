"""Chat templates against `transformers`, and what the sandbox refuses."""

from __future__ import annotations

import threading
import time

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from inference.errors import InvalidRequest
from inference.processing.cancellation import ABANDONED, Abandoned
from inference.processing.templates.chat_template import ChatTemplate, UnusableTemplate
from tests.traced_memory import memory_below

TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "  ¿Dónde <b>está</b>\nToledo? "},
    {"role": "assistant", "content": "Spain </s>"},
    {"role": "user", "content": '{{ bos_token }} "quoted" {% if %}'},
]
TEMPLATES = {
    "marks around each message": """
{%- for message in messages %}
    {{- '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}""",
    "blocks on lines of their own": """{{ bos_token }}
{% for message in messages %}
    {% if message.role == 'system' %}
[{{ message.content | trim }}]
    {% else %}
{{ loop.index0 }}: {{ message.content.strip() }}{{ eos_token if loop.last else '' }}
    {% endif %}
{% endfor %}
""",
    "a namespace, loop controls and slices": """
{%- set state = namespace(system='', seen=0) -%}
{%- for message in messages -%}
    {%- if message.role == 'system' -%}{%- set state.system = message.content -%}
        {%- continue -%}{%- endif -%}
    {%- set state.seen = state.seen + 1 -%}
    {%- if state.seen > 2 -%}{%- break -%}{%- endif -%}
    <{{ message.role[:1] | upper }}>{{ message.content }}
{%- endfor -%}
{{ state.system }}{{ messages[1:] | length }}{{ messages[-1]['role'] }}""",
    "JSON, dictionaries and undefined names": """
{{- messages | tojson }}{{ messages[0] | tojson(indent=2) }}
{{- dict(a=1, b='é').items() | list }}{{ dict.fromkeys(['x'], 1) }}{{ nothing }}
{{- messages[0].role ~ 1 ~ nothing ~ none }}
{{- tools is none }}{{ documents is none }}{{ custom is defined }}{{ pad_token is defined }}""",
    "marked answers": """
{%- for m in messages %}{% generation %}{{ m.content }}|{% endgeneration %}{% endfor %}""",
    "macros and filters": """
{%- macro show(m, sep=': ') %}{{ m.role }}{{ sep }}{{ m.content | replace('a', 'A') }}{% endmacro %}
{%- for m in messages | rejectattr('role', 'equalto', 'system') %}{{ show(m) }};{% endfor %}""",
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_template_renders_as_in_transformers(name: str) -> None:
    source = TEMPLATES[name]
    (want,), _ = render_jinja_template(
        [CHAT], chat_template=source, add_generation_prompt=True, **TOKENS
    )
    assert ChatTemplate(source, TOKENS).render(CHAT, 10_000) == want
    assert want.strip()


def test_time_is_that_of_the_clock() -> None:
    text = ChatTemplate("{{ strftime_now('%Y') }}", {}).render(CHAT, 100)
    assert text.isdigit()
    assert len(text) == 4


def test_template_may_refuse_messages_with_its_own_words() -> None:
    source = "{{ raise_exception('roles must\n alternate') }}"
    with pytest.raises(InvalidRequest, match="refuses these messages: roles must alternate") as got:
        ChatTemplate(source, {}).render(CHAT, 100)
    assert got.value.field == "messages"


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages[9].content }}",
        "{{ messages[0].content + 1 }}",
        "{{ 1 // 0 }}",
        "{{ '\\ud800' }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ dict.__class__.__base__.__subclasses__() }}",
        "{{ cycler.__init__.__globals__ }}",
        "{% set n = namespace(__class__=1) %}",
        "{% set n = namespace() %}{% set n._x = 1 %}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% for i in range(10000000) %}{% endfor %}",
    ],
)
def test_faults_of_a_template_are_invalid_requests(source: str) -> None:
    with pytest.raises(InvalidRequest, match="chat template refuses"):
        ChatTemplate(source, {}).render(CHAT, 100)


def test_text_of_a_template_is_bounded() -> None:
    source = "{% for i in range(90000) %}{{ messages[0].content }}{% endfor %}"
    with pytest.raises(InvalidRequest, match="more than 50 characters"):
        ChatTemplate(source, {}).render(CHAT, 50)


@pytest.mark.parametrize(
    "source",
    [
        "{% for %}",
        "{{ a | nofilter }}",
        "{% generation %}",
        "{{ a | striptags }}",
        "{{ a | urlize }}",
    ],
)
def test_damaged_template_is_refused_when_it_is_compiled(source: str) -> None:
    with pytest.raises(UnusableTemplate):
        ChatTemplate(source, {})


def test_huge_template_is_refused() -> None:
    with pytest.raises(UnusableTemplate, match="65536"):
        ChatTemplate(" " * 65_537, {})


@pytest.mark.parametrize("piece", ["{{ a }}", "{% for a in b %}{% endfor %}", "{{ a(b)[1:] }}"])
def test_template_whose_code_is_huge_is_refused_before_python_compiles_it(piece: str) -> None:
    with pytest.raises(UnusableTemplate, match="262144 are allowed"):
        ChatTemplate(piece * (65_536 // len(piece)), {})


@pytest.mark.parametrize("name", TEMPLATES)
def test_template_of_thirty_thousand_characters_is_compiled(name: str) -> None:
    source = TEMPLATES[name] * (30_000 // len(TEMPLATES[name]))
    assert ChatTemplate(source, TOKENS)


START = "{% set n = namespace(x='ab') %}"
LOOP = "{% for i in range(9999) %}"
END = "{% endfor %}"


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{{ 'x' * 10 ** 9 }}", "characters"),
        ("{{ 10 ** 9 * 'x' }}", "characters"),
        ("{{ [0] * 10 ** 9 }}", "characters"),
        ("{{ 9 ** (9 ** 9) }}", "bits"),
        ("{% set n = namespace(x=9) %}" + LOOP + "{% set n.x = n.x * n.x %}" + END, "bits"),
        (START + LOOP + "{% set n.x = n.x + n.x %}" + END, "characters"),
        (START + LOOP + "{% set n.x = n.x ~ n.x %}" + END, "characters"),
        (START + LOOP + "{% set n.x = [n.x, n.x] | join %}" + END,
         "characters"),
        (START + LOOP + "{% set n.x = n.x.join([n.x] * 9) %}" + END,
         "characters"),
        (START + LOOP
         + "{% set n.x = n.x.replace('a', n.x) %}" + END, "characters"),
        (START + LOOP
         + "{% set n.x = n.x | replace('a', n.x) %}" + END, "characters"),
        (LOOP * 3 + END * 3, "steps| s$"),
        (LOOP * 2 + "{{ range(99999) | sum }}" + END * 2, " s$"),
        ("{% macro f(n) %}{% if n %}{{ f(n - 1) ~ f(n - 1) }}{% endif %}{% endmacro %}{{ f(40) }}",
         "steps| s$"),
        ("{{ '%1000000000d' % 1 }}", "width"),
        ("{{ '%*d' % (1000000000, 1) }}", "characters"),
        ("{{ '{:1000000000}'.format(1) }}", "width"),
        ("{{ '{:{}}'.format(1, 1000000000) }}", "characters"),
        ("{{ '{:{}}'.format(1, '1000000000') }}", "width"),
        ("{{ '%1000000000d' | format(1) }}", "width"),
        ("{{ 'x'.ljust(10 ** 9) }}", "characters"),
        ("{{ 'x' | center(10 ** 9) }}", "characters"),
        ("{{ 'x' | indent(10 ** 9, true) }}", "characters"),
        ("{{ [1] | tojson(indent=10 ** 9) }}", "characters"),
        ("{{ [1] | slice(10 ** 9) | list }}", "characters"),
        ("{{ lipsum(10 ** 9) }}", "undefined"),
        (START + LOOP + "{% set n.x = [n.x, n.x] %}" + END, "characters"),
        (START + LOOP + "{% set n.x = (n.x, n.x) %}" + END, "characters"),
        (START + LOOP + "{% set n.x = {1: n.x, 2: n.x} %}" + END, "characters"),
        (START + LOOP + "{% set n.x = dict(a=n.x, b=n.x) %}" + END, "characters"),
        (START + LOOP + "{% set n.x = [n.x] * 2 %}" + END, "characters"),
        (START + LOOP + "{% set n.x = [n.x] + [n.x] %}" + END, "characters"),
        (START + LOOP + "{% set n.x = [n.x] | batch(2, n.x) | list %}" + END, "characters"),
        (START + LOOP + "{% set n.x = dict.fromkeys(range(9), n.x) %}" + END, "characters"),
        (START + LOOP + "{% set n.x = [n.x] %}" + END, "deep"),
        (START + "{% macro f() %}{% set n.x = varargs %}{% endmacro %}"
         + LOOP + "{% set _ = f(n.x, n.x) %}" + END, "characters"),
        (START + "{% macro f(x) %}" + "{{ x }}" * 50 + "{% endmacro %}"
         + LOOP + "{% set n.x = f(n.x) %}" + END, "characters|steps"),
        (START + LOOP + "{% set n.x %}{{ n.x }}{{ n.x }}{% endset %}" + END, "characters|steps"),
        ("{% set x = 'x'.ljust(10 ** 6) %}{{ ([x] * 2) | map('upper') | join }}"
         "{{ [x, x, x, x, x] | map('upper') | join }}", "characters"),
        ("{% set x = 'x'.ljust(10 ** 6) %}{{ ''.join([x, x, x, x] | map('upper')) }}",
         "characters"),
        ("{% set x = 'x'.ljust(10 ** 6) %}{{ '{0}{0}{0}{0}{0}'.format(x) }}", "characters"),
        ("{% set x = 'x'.ljust(10 ** 6) %}{{ '%(a)s%(a)s%(a)s%(a)s' % dict(a=x) }}",
         "characters"),
        ("{{ range(9999) | list | tojson(separators=('x'.ljust(9999), ':')) }}", "characters"),
        (START + "{% for i in range(60) %}{% set n.x = [n.x] %}{% endfor %}"
         "{{ ([n.x] * 900) | tojson(indent=99) }}", "characters"),
        (LOOP + "{% set x = range(99999) | list %}" + END, "steps| s$"),
        (LOOP + "{% set x = 'x'.ljust(10 ** 6 + i) %}" + END, "steps| s$"),
        ("{% set x = 'x'.ljust(10 ** 6) %}" + LOOP + "{% set y = x[1:] %}" + END, "steps| s$"),
        ("{{ [[1]] | sum(start=[]) }}", "sums"),
        ("{{ 1.5 | round(10 ** 9, 'ceil') }}", "digits"),
        ("{{ 'x'.encode().ljust(10 ** 9) }}", "unsafe"),
        ("{{ (1).to_bytes(10 ** 9) }}", "unsafe"),
        ("{{ 'x'.translate({120: 'y'}) }}", "unsafe"),
        ("{{ strftime_now('%c' * 999) }}", "form of the time"),
    ],
)  # fmt: skip
def test_work_and_memory_of_a_rendering_are_limited(
    source: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What may end by its time alone has a quarter of it, but for one that has the whole."""
    if reason.endswith("| s$"):
        monkeypatch.setattr("inference.processing.templates.template_sandbox.MAX_RENDER_S", 0.5)
    template = ChatTemplate(source, {})
    started_s = time.monotonic()
    with pytest.raises(InvalidRequest, match=f"chat template refuses these messages: .*({reason})"):
        template.render(CHAT, 10**10)
    assert time.monotonic() - started_s < 10


def test_each_rendering_has_the_limits_for_itself() -> None:
    template = ChatTemplate("{% for i in range(90000) %}{% endfor %}x", {})
    assert {template.render(CHAT, 100) for _ in range(12)} == {"x"}


def test_long_conversation_is_within_the_limits() -> None:
    source = (
        "{% set n = namespace(text='') %}"
        "{% for m in messages %}{% set n.text = n.text ~ m.role + ': ' ~ m.content %}{% endfor %}"
        "{{ n.text }}"
    )
    messages = [{"role": "user", "content": "a word " * 100}] * 200
    assert len(ChatTemplate(source, {}).render(messages, 200_000)) == 200 * 706


def test_compiling_computes_no_constants() -> None:
    with memory_below(3_000_000):
        ChatTemplate("{{ 'a' | center(3000000) | upper }}" * 30, {})


@pytest.mark.parametrize(
    "source",
    [
        "{% set n = namespace(x=[]) %}" + LOOP + "{% set n.x = [n.x, range(99999) | list] %}" + END,
        START + LOOP + "{% set n.x = [n.x | string, n.x | string] %}" + END,
        START + LOOP + "{% set n.x = 'x'.ljust(3000000 + i) ~ n.x[:9] %}" + END,
        START + LOOP + "{% set n.x = [('a ' * 1900000).split()] %}" + END,
    ],
)
def test_memory_of_a_rendering_is_bounded(source: str) -> None:
    template = ChatTemplate(source, {})
    with memory_below(3e8), pytest.raises(InvalidRequest, match="chat template refuses"):
        template.render(CHAT, 10**10)


def test_lists_of_a_long_conversation_are_within_the_limits() -> None:
    source = (
        "{% set n = namespace(all=[], seen={}) %}"
        "{% for m in messages %}{% set n.all = n.all + [m] %}"
        "{% set n.seen = dict(n.seen, last=m.content) %}"
        "{% if messages[loop.index0:] | length %}{{ m.content.strip() }}{% endif %}{% endfor %}"
        "{{ n.all | map(attribute='role') | join(', ') }}{{ n.all | tojson(indent=2) }}"
        "{{ '%s: %s' % (n.seen.last, 1) }}{{ '{}{}'.format(n.seen.last, 2) }}"
    )
    messages = [{"role": "user", "content": "a word\n" * 300}] * 400
    (want,), _ = render_jinja_template([messages], chat_template=source, add_generation_prompt=True)
    assert ChatTemplate(source, {}).render(messages, 4_000_000) == want


@pytest.mark.parametrize(
    "form", ["%(a)999999999d", "%(a)-099999d", "%(a).99999f", "%(a(b)c)99999d"]
)
def test_wide_formats_with_names_are_refused_unwritten(form: str) -> None:
    template = ChatTemplate("{{ '" + form + "' % {'a': messages | length, 'a(b)c': 1} }}", {})
    with memory_below(10_000_000), pytest.raises(InvalidRequest, match="format"):
        template.render(CHAT, 1000)


def test_formats_with_names_are_written() -> None:
    template = ChatTemplate("{{ '%(a)5d|%(b)s 123456' % {'a': 3, 'b': 'x'} }}", {})
    assert template.render(CHAT, 1000) == "    3|x 123456"


@pytest.mark.parametrize("literal", ["9" * 150_000, "1e999999999", "0x" + "f" * 150_000])
def test_templates_with_enormous_numbers_do_not_end_in_python_errors(literal: str) -> None:
    with pytest.raises((UnusableTemplate, InvalidRequest)):
        ChatTemplate("{{ " + literal + " }}", {}).render(CHAT, 1000)


def test_rendering_ends_when_nothing_waits_for_it() -> None:
    template = ChatTemplate("{% for n in range(9999) %}{{ n }}{% endfor %}", {})
    abandoned = threading.Event()
    token = ABANDONED.set(abandoned)
    try:
        assert template.render(CHAT, 100_000).endswith("9998")
        abandoned.set()
        with pytest.raises(Abandoned):
            template.render(CHAT, 100_000)
    finally:
        ABANDONED.reset(token)
