"""The program in a model's answer, whichever way it was given: a function's rest, or the whole of it, fenced
or not.

    1. a fenced block that defines the function          the first one that does
    2. text without such a block that defines it         from the first line of code on
    3. anything else                                     goes on where the prompt stops

A block is taken whole. Elsewhere what follows the code (an explanation, a call, a closing fence) is cut off:
code ends before the first line at the margin that begins no definition, assignment, import, comment or
bracket, strings over several lines apart. A whole function stands in for the prompt's, behind what the prompt
has before it (imports, other functions). Textual rules alone, because this runs outside the sandbox and the
text is anybody's: it is never parsed, and always comes to something.
"""

import re
from collections.abc import Iterator

FENCE = re.compile(r"^[ \t]{0,8}```[^\n]*\n(.*?)(?:^[ \t]{0,8}```|\Z)", re.MULTILINE | re.DOTALL)
LONGEST = 1 << 16
"""Characters of an answer that are looked at: a token can be as long as its tokenizer likes."""
ASSIGNMENT = r"[A-Za-z_]\w{0,99}(?: ?:[^=\n]{1,200}| {0,8})=(?!=)"
START = rf"async def |def |class |import [\w.]|from [\w.]+ import |@\w|{ASSIGNMENT}"
FIRST_CODE = re.compile(rf"^(?:{START})", re.MULTILINE)
CODE_AT_THE_MARGIN = re.compile(rf"(?:{START}|#|[)\]}}])")
QUOTES = re.compile(r'"""|\'\'\'')


def extract_program(prompt: str, entry: str, answer: str) -> str:
    """The prompt's function as the answer has it."""
    answer = answer[:LONGEST]
    defined = re.compile(rf"^(?:async )?def {re.escape(entry)}\b", re.MULTILINE)
    before = next((prompt[: found.start()] for found in defined.finditer(prompt)), "")
    for block in [match[1] for match in FENCE.finditer(answer)]:
        if defined.search(block):
            return before + block
    if (found := defined.search(answer)) is not None:
        first = FIRST_CODE.search(answer)
        start = min(found.start(), first.start() if first else found.start())
        return before + _cut_after_code(answer[start:])
    return prompt + _cut_after_code(_extract_body(answer))


def _extract_body(answer: str) -> str:
    """A function's rest: as it stands, or in a block after some words."""
    block = FENCE.search(answer)
    if block and block[1].strip() and not answer[: block.start()].startswith((" ", "\t", "\n")):
        return block[1]
    return answer


def _cut_after_code(text: str) -> str:
    """The text as far as it is code."""
    return "".join(_iter_code_lines(text))


def _iter_code_lines(text: str) -> Iterator[str]:
    quote = ""  # the kind of quotation marks of the string that goes on from the line before
    for line in text.splitlines(keepends=True):
        at_margin = line[:1].strip() != ""
        if at_margin and not quote and not CODE_AT_THE_MARGIN.match(line):
            return
        yield line
        for mark in QUOTES.findall(line):
            quote = mark if not quote else "" if mark == quote else quote
