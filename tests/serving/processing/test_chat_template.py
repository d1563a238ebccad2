"""Chat templates against `transformers`, and what the sandbox refuses."""

from __future__ import annotations

import time

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from serving.errors import InvalidRequest
from serving.processing.chat_template import ChatTemplate, UnusableTemplate

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


@pytest.mark.parametrize("source", ["{% for %}", "{{ a | nofilter }}", "{% generation %}"])
def test_damaged_template_is_refused_when_it_is_compiled(source: str) -> None:
    with pytest.raises(UnusableTemplate):
        ChatTemplate(source, {})


def test_huge_template_is_refused() -> None:
    with pytest.raises(UnusableTemplate, match="200000"):
        ChatTemplate(" " * 200_001, {})


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
        ("{{ '%1000000000d' | format(1) }}", "width"),
        ("{{ 'x'.ljust(10 ** 9) }}", "characters"),
        ("{{ 'x' | center(10 ** 9) }}", "characters"),
        ("{{ 'x' | indent(10 ** 9, true) }}", "characters"),
        ("{{ [1] | tojson(indent=10 ** 9) }}", "characters"),
        ("{{ [1] | slice(10 ** 9) | list }}", "characters"),
        ("{{ lipsum(10 ** 9) }}", "undefined"),
    ],
)  # fmt: skip
def test_work_and_memory_of_a_rendering_are_limited(source: str, reason: str) -> None:
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
