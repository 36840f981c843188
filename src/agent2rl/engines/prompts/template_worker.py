"""The program that renders chat templates: started as a script, in a process of its own.

Reads lines of JSON: first the template with its special tokens, then lists of chats. Answers each list with
a line, `{"texts": [...]}` or `{"error": the kind of error}`. The text of an error is never passed on: a
template could put the chat into it. Imports nothing but Jinja, so that it starts fast.
"""

import json
import resource
import sys
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import nodes
from jinja2.exceptions import TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

MEMORY_BYTES = 1 << 30
TODAY = datetime(2025, 1, 1)
"""The same each day, so that a model's score is too."""


class GenerationTag(Extension):
    """`{% generation %}` marks what the assistant says, for training; here it is only its body."""

    tags = {"generation"}  # noqa: RUF012 (declared by Jinja)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_template_error(message: str) -> NoReturn:
    raise TemplateError(message)


def _to_json(value: Any, indent: int | None = None, ensure_ascii: bool = False, **options: Any) -> str:
    return json.dumps(value, indent=indent, ensure_ascii=ensure_ascii, **options)


def build_environment() -> ImmutableSandboxedEnvironment:
    """What chat templates expect to find."""
    found = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, GenerationTag]
    )
    found.filters["tojson"] = _to_json
    found.globals["raise_exception"] = _raise_template_error
    found.globals["strftime_now"] = TODAY.strftime
    return found


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    first = json.loads(sys.stdin.readline())
    template = None
    for line in sys.stdin:
        answer: dict[str, Any] = {"texts": []}
        try:
            for chat in json.loads(line):
                template = template or build_environment().from_string(first["template"])
                answer["texts"].append(
                    template.render(messages=chat, add_generation_prompt=True, tools=None, **first["tokens"])
                )
        except Exception as error:
            answer = {"error": type(error).__name__}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
