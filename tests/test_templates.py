"""Chat templates: those that models really have pass, those that reach for more are refused."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent2rl.core.errors import Refusal
from agent2rl.grading.templates import TEMPLATE_BYTES, check_template

MARKED = """
{%- if messages[0]['role'] == 'system' -%}
    {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
{%- else %}
    {{- '<|im_start|>system\\nAnswer with care.<|im_end|>\\n' }}
{%- endif %}
{%- if tools %}
    {{- "Functions you can use, one JSON object a line:" }}
    {%- for tool in tools %}{{- "\\n" }}{{- tool | tojson }}{%- endfor %}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or
           (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function is defined %}{%- set tool_call = tool_call.function %}{%- endif %}
            {{- '{"name": "' }}{{- tool_call.name }}{{- '", "arguments": ' }}
            {{- tool_call.arguments | tojson }}{{- '}' }}
        {%- endfor %}
    {%- elif message.role == "tool" and (loop.index0 == 0 or messages[loop.index0 - 1].role != "tool") %}
        {{- '<tool_response>' ~ message.content ~ '</tool_response>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""
DATED = """
{{- bos_token }}
{%- if custom_tools is defined %}{%- set tools = custom_tools %}{%- endif %}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}{%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}{%- set date_string = "1 Jan 2025" %}{%- endif %}
{%- endif %}
{%- set ns = namespace(system='', seen=false) %}
{%- for message in messages if message['role'] == 'system' %}
    {%- set ns.system = ns.system + message['content'] | trim %}
{%- endfor %}
{%- for message in messages[1:] %}
    {%- set text = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' %}
    {%- if loop.last and not (message.content is string) %}{% continue %}{% endif %}
    {{- text + message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if builtin_tools is defined and tools is not none %}
    {{- "Tools: " + builtin_tools | reject('equalto', 'code_interpreter') | join(", ") }}
{%- endif %}
{{- "Today: " ~ date_string ~ ns.system }}
"""
ALTERNATING = """
{{- bos_token }}
{%- set loop_messages = messages[1:] if messages[0].role == 'system' else messages %}
{%- for message in loop_messages %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('Roles must take turns: user, assistant, user, assistant') }}
    {%- endif %}
    {%- if message['role'] == 'user' %}{{- '[INST] ' + message['content'].strip() + ' [/INST]' }}
    {%- elif message['role'] == 'assistant' %}
        {%- generation %}{{- ' ' + message['content'].split('</think>')[-1].lstrip('\\n') + eos_token }}
        {%- endgeneration %}
    {%- else %}{{- raise_exception('Only user and assistant may speak') }}{%- endif %}
{%- endfor %}
"""
TURNS = """
{%- macro part(item, depth=0) -%}
    {%- if item is string %}{{ item | trim }}
    {%- elif item is mapping %}{% for key, value in item | dictsort %}
        {{- key | upper }}: {{ part(value, depth + 1) }}
    {%- endfor %}
    {%- elif item is iterable %}{% for piece in item %}{{ piece.get('text', '') }}{% endfor %}
    {%- endif %}
{%- endmacro -%}
{%- for message in messages %}
    {%- set role = 'model' if message.role == 'assistant' else message.role %}
    {%- if role == 'stop' %}{% break %}{% endif %}
    {{- '<start_of_turn>' ~ role ~ '\\n' ~ part(message.content) ~ '<end_of_turn>\\n' }}
{%- endfor %}
{%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>' }}{% endif %}
{%- set last = messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | list | last %}
{%- for i in range(messages | length - 1, -1, -1) %}{% set m = messages[::-1][i] %}{% endfor %}
{%- for key, value in (tools or [{}])[0].items() %}{{ key }}{% endfor %}
{%- set words %}{{ last }}{% endset %}{{ words | replace('_', ' ') }}
"""


@pytest.mark.parametrize("source", ["", "plain text", MARKED, DATED, ALTERNATING, TURNS])
def test_templates_of_the_kinds_that_models_have_are_accepted(source: str) -> None:
    check_template(source)


def test_a_variable_the_template_asks_for_first_is_accepted() -> None:
    check_template("{% if thinking_budget is defined %}{{ thinking_budget }}{% endif %}")


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ ''['__class__'] }}",
        "{{ ''['__cla' 'ss__'] }}",
        "{{ ''['\\x5f\\x5fclass\\x5f\\x5f'] }}",
        "{{ messages._private }}",
        "{{ messages['_private'] }}",
        "{{ '' | attr('upper') }}",
        "{{ '' | attr('\\x5f_class__') }}",
        "{{ messages | map(attribute='__class__') | list }}",
        "{{ messages | map(attribute='a._b') | list }}",
        "{{ messages | map('attr', 'upper') | list }}",
        "{{ messages | map(name) | list }}{% set name = 'attr' %}",
        "{{ messages | map(*['attr', 'upper']) | list }}",
        "{{ messages | map(**{'attribute': 'x'}) | list }}",
        "{{ messages | selectattr('_hidden') | list }}",
        "{{ messages | sort(attribute='_hidden') }}",
        "{{ lipsum.globals }}",
        "{{ lipsum(10000) }}",
        "{{ cycler.next }}",
        "{{ joiner() }}",
        "{{ self }}",
        "{{ self.x() }}",
        "{% set self = 1 %}",
        "{% macro caller() %}{% endmacro %}",
        "{{ config.items() }}",
        "{{ request.application }}",
        "{{ get_flashed_messages() }}",
        "{{ open('/etc/passwd').read() }}",
        "{{ messages() }}",
        "{{ messages[0]() }}",
        "{{ messages['items']() }}",
        "{{ (messages or tools)() }}",
        "{{ '{0.real}'.format(1) }}",
        "{{ '{a.b}'.format_map(messages) }}",
        "{{ '%99999999d' | format(1) }}",
        "{{ 'x'.center(100000000) }}",
        "{{ messages.append(1) }}",
        "{{ __builtins__ }}",
        "{{ __builtins__ is defined and __builtins__ }}",
        "{{ lipsum is defined and lipsum.x }}",
        "{% set ns = namespace() %}{% set ns.__class__ = 1 %}",
        "{% set other.x = 1 %}",
        "{{ 9 ** 9 ** 9 }}",
        "{{ messages is nothing_known }}",
        "{{ messages | nothing_known }}",
        "{{ messages | random }}",
        "{% include 'a' %}",
        "{% import 'a' as b %}",
        "{% from 'a' import b %}",
        "{% extends 'a' %}",
        "{% block a %}{% endblock %}",
        "{% autoescape true %}{% endautoescape %}",
        "{% filter upper %}{% endfilter %}",
        "{% call x() %}{% endcall %}",
        "{% do messages %}",
        "{% debug %}",
        "{% trans %}{% endtrans %}",
        "{% generation %}",
        "{% endgeneration %}",
        "{% for %}",
        "{{ 'open",
        "{{ }}",
        "{# open",
        "{{ '\\ud800' }}{{ x }}",
        "\ud800{{ x }}",
        "{{ " + "9" * 5000 + " }}",
        "{{ 'a\\N{no such name}' }}",
    ],
)
def test_a_template_that_reaches_for_more_is_refused(source: str) -> None:
    with pytest.raises(Refusal, match=r"(?s)chat template is not accepted.*Keep the base model's") as caught:
        check_template(source)
    str(caught.value).encode()


def test_a_refusal_names_the_line() -> None:
    with pytest.raises(Refusal, match=r"line 3: the filter 'attr' is not accepted"):
        check_template("one\ntwo\n{{ messages | attr('x') }}")


def test_a_template_may_have_so_many_bytes_and_no_more() -> None:
    check_template("é" * (TEMPLATE_BYTES // 2))
    with pytest.raises(Refusal, match=r"65,538 bytes; the limit is 65,536"):
        check_template("é" * (TEMPLATE_BYTES // 2 + 1))


@pytest.mark.parametrize(
    "source",
    [
        "{{ " + "(" * 20_000 + "1" + ")" * 20_000 + " }}",
        "{{ " + "[" * 150 + "]" * 150 + " }}",
        "{{ " + "not " * 10_000 + "1 }}",
        "{{ " + "1 + " * 10_000 + "1 }}",
        "{{ messages" + ".a" * 10_000 + " }}",
        "{{ messages" + "|list" * 10_000 + " }}",
        "{% if messages %}" * 2_000 + "{% endif %}" * 2_000,
    ],
    ids=["parentheses", "lists", "not", "sum", "attributes", "filters", "if"],
)
def test_nesting_without_end_is_refused(source: str) -> None:
    with pytest.raises(Refusal, match=r"nested more than 100 deep"):
        check_template(source)


PIECES = """
{{ }} {% %} {# #} {%- -%} if else elif endif for in endfor set endset macro endmacro ( ) [ ] { } . , : | ~
+ - * ** / // == < = not and or is defined messages x loop namespace 'a' "_" '\\x5f' 1 1e999 0x_1 9_9 _ __ raw
endraw generation endgeneration break continue with endwith map attr \\ ' " \ud800 \0
"""
FRAGMENTS = st.sampled_from(PIECES.split())


@settings(max_examples=600, deadline=None)
@given(
    source=st.one_of(st.lists(FRAGMENTS, max_size=25).map(" ".join), st.text(st.characters(), max_size=60))
)
def test_any_text_is_accepted_or_refused(source: str) -> None:
    for text in (source, "{{" + source + "}}", "{%" + source + "%}"):
        try:
            check_template(text)
        except Refusal as refusal:
            str(refusal).encode()


@pytest.mark.parametrize(
    "piece", ["{{", "{%", "{#", "{% raw %}", " ", "\n", "{{ '", "-%}", "{%- ", "|", "\\", "{{a", "{{x}}"]
)
def test_no_text_of_the_longest_size_keeps_the_parser_busy_for_ever(piece: str) -> None:
    source = piece * (TEMPLATE_BYTES // len(piece))
    for text in (source, "{{" + source, source[: TEMPLATE_BYTES - 5] + "{{x}}"):
        try:
            check_template(text)
        except Refusal:
            continue
