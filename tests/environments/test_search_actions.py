"""The action is found in what models write, in any of the shapes that they write it in."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent2rl.environments.search.actions import NONE, normalize_action, parse_action

SHAPES = {
    # As it should be.
    "search[founder of Orin]": "search[founder of Orin]",
    "open[3]": "open[3]",
    "answer[Orin]": "answer[Orin]",
    "> search[Orin]": "search[Orin]",
    "  search[Orin]  \n\n": "search[Orin]",
    # Thoughts.
    "Thought: who founded it?\nAction: search[Orin]": "search[Orin]",
    "Thought 1: who founded it?\nAction 1: search[Orin]": "search[Orin]",
    "I need the founder.\nThen the town.\n\nsearch[Orin]": "search[Orin]",
    "Thought: I need\nthe founder,\nfirst of all.\nAction: search[Orin]": "search[Orin]",
    "Thought: the founder. search[Orin]": "search[Orin]",
    "Thought: I could use search[a] here.\nAction: search[b]": "search[b]",
    "Thought: answer[…] comes last.\nAction 2: open[1]": "open[1]",
    "<think>search[a]? No.</think>search[b]": "search[b]",
    "<think>\nsearch[a]\n</think>\n\nAction: open[2]": "open[2]",
    "<think>search[a] or answer[b], I wonder": NONE,
    "<thinking>x</thinking> answer[b]": "answer[b]",
    "I could say answer[a].\n</think>\nsearch[b]": "search[b]",  # the prompt ends with <think>
    "<think>a <think>search[b]</think> search[c]</think> search[d]": "search[d]",
    "answer[a], I wonder</think>": NONE,
    '{"name": "search", "arguments": {"query": "\\u003c/think>Orin"}}': "search[Orin]",
    "search(Orin </th]ink> Foods)": "search[Orin Foods]",
    # Labels.
    "Action: search[Orin]": "search[Orin]",
    "Action 12: search[Orin]": "search[Orin]",
    "ACTION: SEARCH[Orin]": "search[Orin]",
    "action: search[Orin]": "search[Orin]",
    "**Action:** search[Orin]": "search[Orin]",
    "**Action 1**: search[Orin]": "search[Orin]",
    "### Action:\nsearch[Orin]": "search[Orin]",
    "- Action: search[Orin]": "search[Orin]",
    "Action:\n\n  open[4]": "open[4]",
    "Next Action: search[Orin]": "search[Orin]",
    # Emphasis, quotes, code.
    "**search[Orin]**": "search[Orin]",
    "*search[Orin]*": "search[Orin]",
    "`search[Orin]`": "search[Orin]",
    "**search**[Orin]": "search[Orin]",
    "`search`[Orin]": "search[Orin]",
    "__search__[Orin]": "search[Orin]",
    "```\nsearch[Orin]\n```": "search[Orin]",
    "```python\nAction: search[Orin]\n```": "search[Orin]",
    "Action: ```search[Orin]```": "search[Orin]",
    'search["Orin"]': "search[Orin]",
    "search['Orin Foods']": "search[Orin Foods]",
    "search[“Orin”]": "search[Orin]",
    'search["Orin" "Foods"]': 'search["Orin" "Foods"]',
    "answer[**Orin**]": "answer[Orin]",
    r"search\[Orin\]": "search[Orin]",
    "search［Orin］": "search[Orin]",
    # Spaces and line breaks.
    "Search [Orin]": "search[Orin]",
    "search[ Orin   Foods ]": "search[Orin Foods]",
    "search[Orin\nFoods]": "search[Orin Foods]",
    "search\n[Orin]": "search[Orin]",
    "search[\n  Orin\n]": "search[Orin]",
    "answer[\n- Orin\n- Talva\n]": "answer[Orin; Talva]",
    "answer[1. Orin\n2. Talva]": "answer[Orin; Talva]",
    "answer[Orin,\nTalva]": "answer[Orin, Talva]",
    # Brackets.
    "search[Orin [company] founder]": "search[Orin [company] founder]",
    "answer[f[0], g[1]]": "answer[f[0], g[1]]",
    "search[Orin": "search[Orin]",
    "search[Orin\nThought: and now?": "search[Orin]",
    "search[Orin [company]": "search[Orin [company]]",
    "search[Orin [company founder]]": "search[Orin [company founder]]",
    "Action: answer[Orin\n\nThat is all [1].": "answer[Orin]",
    "answer[Orin]]": "answer[Orin]",
    "search[]": "search[]",
    # Several.
    "search[a]\nsearch[b]": "search[a]",
    "search[a] answer[b]": "search[a]",
    "Action 1: search[a]\nAction 2: open[1]": "search[a]",
    "Action: search[a]\nObservation: Orin…\nAction: answer[b]": "search[a]",
    "search[a]\nObservation 1: Orin\nThought: yes\nAction 2: answer[b]": "search[a]",
    "search[a\nsearch[b]": "search[a]",
    # As other harnesses have it.
    "finish[Orin]": "answer[Orin]",
    "Finish[Orin]": "answer[Orin]",
    'search("Orin Foods")': "search[Orin Foods]",
    "search(query='Orin')": "search[Orin]",
    'search("a")\nanswer[b]': "search[a]",
    "Action: search\nAction Input: Orin Foods": "search[Orin Foods]",
    'Action: search\nAction Input: "Orin Foods"': "search[Orin Foods]",
    "Action: search Orin Foods": "search[Orin Foods]",
    "Search: Orin Foods": "search[Orin Foods]",
    "Thought: I know it.\nFinal Answer: Orin": "answer[Orin]",
    "**Final Answer:** Orin, Talva": "answer[Orin, Talva]",
    "Answer:\n- Orin\n- Talva": "answer[Orin; Talva]",
    '{"name": "search", "arguments": {"query": "Orin"}}': "search[Orin]",
    '<tool_call>{"name": "answer", "arguments": {"items": ["a", "b"]}}</tool_call>': "answer[a; b]",
    '```json\n{"action": "search", "action_input": "Orin"}\n```': "search[Orin]",
    # No action.
    "": NONE,
    "   \n": NONE,
    "I do not know.": NONE,
    "research[Orin]": NONE,
    "I will search for Orin now.": NONE,
    "look up Orin": NONE,
    "{}": NONE,
    r'{"name": "search", "arguments": {"query": "\ud800Orin"}}': "search[?Orin]",
    '{"name": "buy", "arguments": {}}': NONE,
}
PIECES = st.sampled_from(
    [
        *(
            "search",
            "open[",
            "answer[",
            "]",
            "[",
            "(",
            ")",
            "{",
            "}",
            "\\",
            '"',
            "'",
            "**",
            "`",
            ":",
            "\n",
            " ",
        ),
        *("Action:", "Action 1:", "Observation:", "Thought:", "Final Answer:", "<think>", "</think>"),
        *("Orin", "é", "- ", "1. "),
    ]
)


@pytest.mark.parametrize("reply", SHAPES)
def test_the_action_is_found(reply: str) -> None:
    assert normalize_action(reply) == SHAPES[reply]


def test_at_least_sixty_shapes_are_known() -> None:
    assert len(SHAPES) >= 60


@given(st.lists(PIECES, max_size=25).map("".join) | st.text(max_size=200))
def test_an_action_is_one_line_and_reads_the_same_again(reply: str) -> None:
    action = normalize_action(reply)
    assert len(action.splitlines()) == 1
    assert normalize_action(action) == action
    assert (parse_action(reply) is None) == (action == NONE)


@given(
    st.sampled_from(["search", "open", "answer"]), st.from_regex(r"[A-Za-z0-9,.;' é-]{0,80}", fullmatch=True)
)
def test_what_is_between_brackets_is_kept(verb: str, text: str) -> None:
    found = parse_action(f"Thought: hm.\nAction: {verb}[x{text}x]")
    assert found is not None
    assert found.text == " ".join(f"x{text}x".split())


LONG = {
    **dict.fromkeys(
        ("search ", "action:", "\n", "* ", "search[", "[", "{", '{"a":', "<think>", "(", '"'), ""
    ),
    "Observation:\n": "",
    "</think>": "",
    "- `": "answer[",
    "\\ ": "answer[",
    "- ": "answer:",
    "\n-": "answer:",
}
"""What is said again and again → what it is said after."""


@pytest.mark.parametrize("said", LONG)
def test_a_long_reply_is_read_in_no_time(said: str) -> None:
    begun = time.thread_time()
    parse_action(LONG[said] + said * 20_000)
    assert time.thread_time() - begun < 3


@pytest.mark.parametrize(
    "before",
    [
        *(
            "search(",
            "search(x",
            "search(x=",
            "action",
            "action 1",
            "action: search",
            "action: search\ninput",
        ),
        *("action: search\naction input", "observation", "final", "final answer", "answer"),
    ],
)
@pytest.mark.parametrize("after", ["", "x("])
def test_no_blanks_hold_the_parser_up(before: str, after: str) -> None:
    begun = time.thread_time()
    parse_action(before + " " * 20_000 + after)
    assert time.thread_time() - begun < 3
