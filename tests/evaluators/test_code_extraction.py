"""The program is found in an answer, however it is given; and some program is found in anything."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent2rl.core.task import Example
from agent2rl.evaluators.code_tests.evaluator import extract_program
from agent2rl.tasks.humaneval.mini import generate_problems

PROMPT = (
    'import math\n\n\ndef half(x):\n    return x / 2\n\n\ndef area(r):\n    """ The area of a circle. """\n'
)
BODY = "    square = r * r\n    return math.pi * square\n"
WHOLE = f"def area(r):\n{BODY}"
FENCED = f"```python\n{WHOLE}```"

ANSWERS = {
    "the body": BODY,
    "the body and a closing fence": BODY + "```\n\nThis computes the area.",
    "the body and an explanation": BODY + "\nThe function multiplies.\nThen it returns.\n",
    "the body and a call": BODY + "\nprint(area(2))\n",
    "the body and tests": BODY + "\nassert area(1) > 3\nif __name__ == '__main__':\n    main()\n",
    "the body and another function": BODY + "\n\ndef other(x):\n    return x\n",
    "the body with a comment at the margin": "    square = r * r\n# then\n    return math.pi * square\n",
    "the body in a fence": f"Here it is:\n```python\n{BODY}```\n",
    "the whole": WHOLE,
    "the whole, fenced": FENCED,
    "the whole, fenced in words": f"Sure! Here is the function:\n\n{FENCED}\n\nIt uses `math.pi`.",
    "the whole, in a fence that never ends": f"```python\n{WHOLE}",
    "the whole, in a fence without a language": f"```\n{WHOLE}```",
    "the whole, in a fence after one of something else": f"```bash\npip install math\n```\n{FENCED}",
    "the whole, after an import": f"import math\nfrom typing import List\n\n{WHOLE}",
    "the whole, after words": f"Sure, this works:\n\n{WHOLE}\nI hope this helps!",
    "the whole, decorated": f"import functools\n@functools.cache\n{WHOLE}",
    "the whole prompt again": PROMPT + BODY,
    "the whole with a helper after it": f"{WHOLE}\ndef more():\n    return 1\n",
    "the whole with an indented fence": f"  ```python\n{WHOLE}  ```",
    "the whole with windows line ends": FENCED.replace("\n", "\r\n"),
    "the first of two": f"{FENCED}\nOr wrongly:\n```python\ndef area(r):\n    return 0\n```",
    "text over several lines at the margin": '    text = """\nThis stands at the margin.\n"""\n' + BODY,
    "a constant beside it": "PI: float = 3.1415927\ndef area(r):\n    return PI * r * r / I\n\nI = 1\n",
    "a constant, fenced": "```\nif 1:\n    PI = 3.1415927\ndef area(r):\n    return PI * r * r\n```",
    "a bracket at the margin": "    pi = max([\n    math.pi,\n])\n    return pi * r * r\n",
}


def run(source: str) -> float:
    namespace: dict[str, object] = {}
    exec(compile(source, "<program>", "exec"), namespace)
    return namespace["area"](2)  # type: ignore[operator, no-any-return]


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS.keys())
def test_the_program_is_found_in(answer: str) -> None:
    assert round(run(extract_program(PROMPT, "area", answer)), 3) == 12.566


@given(st.text(max_size=400), st.text(max_size=200))
def test_any_answer_comes_to_some_program(answer: str, prompt: str) -> None:
    assert isinstance(extract_program(prompt, "area", answer), str)


chunks = st.sampled_from(
    [
        "```",
        "```python\n",
        "\n",
        "def area(r):\n",
        "    return 3\n",
        '"""',
        "'''",
        "prose.\n",
        "@",
        "import x\n",
        "\t",
        "```\n",
    ]
)


@given(st.lists(chunks, max_size=30).map("".join))
def test_pieces_of_answers_in_any_order_come_to_some_program(answer: str) -> None:
    found = extract_program(PROMPT, "area", answer)
    assert found.startswith("import math")


LONG = 1_000_000


@pytest.mark.parametrize(
    "answer",
    [
        "```" + "a" * LONG,
        "```" + " " * LONG,
        "a:" + " " * LONG,
        "a" * LONG,
        " " * LONG + "```",
        '"""' * LONG,
        "```\n" * LONG,
    ],
    ids=["fence", "fence of spaces", "assignment", "word", "margin", "quotes", "fences"],
)
def test_an_answer_of_any_length_comes_to_a_program_in_no_time(answer: str) -> None:
    assert extract_program(PROMPT, "area", answer).startswith("import math")


prose = st.text(st.characters(categories=("L", "N", "P", "Zs")), max_size=60).filter(
    lambda text: "`" not in text
)


@given(prose, prose, st.sampled_from(["python", "py", "Python", "python3", "", "python title=x"]))
def test_words_around_a_fence_change_nothing(before: str, after: str, language: str) -> None:
    answer = f"{before}\n```{language}\n{WHOLE}```\n{after}"
    assert extract_program(PROMPT, "area", answer) == extract_program(PROMPT, "area", FENCED)


@given(
    st.sampled_from(generate_problems("train", 200)),
    st.sampled_from(["{body}", "{whole}", "```python\n{whole}```", "So:\n```\n{body}```"]),
)
def test_every_way_to_give_a_problems_solution_comes_to_the_same_function(
    problem: Example, form: str
) -> None:
    entry = str(problem.meta["entry_point"])
    whole = problem.prompt[problem.prompt.index(f"def {entry}") :] + problem.target
    source = extract_program(problem.prompt, entry, form.format(body=problem.target, whole=whole))
    namespace: dict[str, object] = {}
    exec(compile(source, "<program>", "exec"), namespace)
    exec(compile(str(problem.meta["test"]), "<test>", "exec"), namespace)
    namespace["check"](namespace[entry])  # type: ignore[operator]
