"""Program that renders chat templates; it is started as a script, in its own process.

It reads lines of JSON: first the template with its special tokens, then lists of chats. It answers each list
with a line, `{"texts": [...]}` or `{"error": the type of error}`. It never returns the text of an error,
because a template could put the chat into it. It imports nothing but Jinja, so that it starts fast.
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
"""Fixed, so that a model's score does not depend on the day."""


class GenerationTag(Extension):
    """`{% generation %}` marks the assistant's text for training; here it renders only its body."""

    tags = {"generation"}  # noqa: RUF012 (declared by Jinja)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_template_error(message: str) -> NoReturn:
    raise TemplateError(message)


def _to_json(value: Any, indent: int | None = None, ensure_ascii: bool = False, **options: Any) -> str:
    return json.dumps(value, indent=indent, ensure_ascii=ensure_ascii, **options)


def build_environment() -> ImmutableSandboxedEnvironment:
    """Return a Jinja environment with everything that chat templates expect."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, GenerationTag]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_template_error
    environment.globals["strftime_now"] = TODAY.strftime
    return environment


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
