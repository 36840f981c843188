"""The program is found in an answer, however it is given; and some program is found in anything."""

import contextlib
import types
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent2rl.core.task import Example
from agent2rl.evaluators.code_tests import server
from agent2rl.evaluators.code_tests.evaluator import build_job, extract_program
from agent2rl.tasks.humaneval.mini import generate_problems

PROMPT = (
    'import math\n\n\ndef half(x):\n    return x / 2\n\n\ndef area(r):\n    """ The area of a circle. """\n'
)
BODY = "    square = r * r\n    return math.pi * square\n"
WHOLE = f"def area(r):\n{BODY}"
FENCED = f"```python\n{WHOLE}```"
DRAFT = "```python\ndef area(r):\n    return r\n```"

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
    "a constant of two names": "    return PI * r * r + B\nPI, B = 3.1415927, 0\n",
    "an augmented assignment": "    return f(r)\nN = 1\nN += 1\ndef f(r):\n    return math.pi * r ** N\n",
    "a call before a helper": "    return f(r)\nprint('area')\ndef f(r):\n    return math.pi * r * r\n",
    "an item": "    return T[1] * f(r)\nT = {}\nT[1] = 1\ndef f(r):\n    return math.pi * r * r\n",
    "a loop": "    return T[1] * r * r\nT = []\nfor n in (0, math.pi):\n    T.append(n)\n",
    "an else": "    return PI * r * r\nif half(2) > 2:\n    PI = 3\nelse:\n    PI = math.pi\n",
    "a try": "    return PI * r * r\ntry:\n    from numpyx import PI\n"
    "except ImportError:\n    PI = math.pi\n",
    "a test before a helper": "    return f(r)\nassert half(2) == 1\ndef f(r):\n    return math.pi * r * r\n",
    "a docstring before a helper": '    return f(r)\n"""Helps."""\ndef f(r):\n    return math.pi * r * r\n',
    "a guard before a helper": "    return f(r)\nif __name__ == '__main__':\n    area('x')\n"
    "def f(r):\n    return math.pi * r * r\n",
    "a continued line": "    return PI * \\\nr * r\nPI = \\\n3.1415927\n",
    "a helper and words": "    return f(r)\nA, B = 1, 2\ndef f(r):\n    return math.pi * r * r\n\n"
    "This calls `f`, which isn't hard:\n- (see above\n",
    "a word that could be a name": BODY + "\nExplanation\n\nThe function multiplies.\n",
    "a label that could be an annotation": BODY + "\nComplexity: O(1)\n",
    "a wrong example": BODY + "\nassert area(1) == 3\n",
    "a wrong example, fenced": f"```python\n{WHOLE}\nassert area(1) == 3\n```",
    "a line that the limit cut": f"```python\n{WHOLE}\nprint(area(1), area(",
    "a draft in the reasoning": f"<think>\n{DRAFT}\nNo.\n</think>\n{FENCED}",
    "a draft in reasoning that the template began": f"{DRAFT}\nNo.\n</think>\n{FENCED}",
    "the body after reasoning": f"<think>Multiply.</think>{BODY}",
    "a bracket at the margin": "    pi = max([\n    math.pi,\n])\n    return pi * r * r\n",
}


def compile_answer(problem: Example, answer: str) -> server.Compiled:
    job = build_job(problem, answer)
    return server.compile_program(job.program, job.fallback, job.entry)


def run_answer(problem: Example, answer: str) -> dict[str, Any]:
    """Run the program and return what it defines, as the sandbox does it."""
    code = compile_answer(problem, answer)
    assert isinstance(code, types.CodeType), code
    namespace: dict[str, Any] = {"__name__": "program"}
    with contextlib.suppress(Exception):
        exec(code, namespace)
    return namespace


AREA = Example("area", PROMPT, BODY, {"entry_point": "area", "test": ""})


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS.keys())
def test_the_program_is_found_in(answer: str) -> None:
    assert round(run_answer(AREA, answer)["area"](2), 3) == 12.566


@pytest.mark.parametrize(
    "answer",
    [
        "    return (\n",
        "    if r:\n",
        "def area(r) return\n",
        "```\ndef area(r):\n  return r\n return 0\n```",
    ],
)
def test_an_error_in_the_function_itself_is_not_cut_off(answer: str) -> None:
    assert isinstance(compile_answer(AREA, answer), SyntaxError)


code_lines = st.lists(
    st.sampled_from(
        [
            "A, B = 1, 2",
            "N = 0\nN += 1",
            "print(half(2))",
            "T = {}\nT[1] = 2",
            "for n in range(3):\n    n",
            '"""\nWords\n"""',
            "if half(2):\n    pass\nelse:\n    pass",
            "try:\n    1\nfinally:\n    2",
            "assert True",
            "# done",
            "x = \\\n3",
            "if __name__ == '__main__':\n    area(1)",
            "class C:\n    pass",
            "import sys",
            "y = [\n1,\n]",
            "@staticmethod\ndef g():\n    pass",
        ]
    )
)
words = st.lists(
    st.sampled_from(["It isn't hard.", "- a (b", "1. The first", "```", "So:", '"""', "if you like", "(see"])
)


@given(code_lines, words)
def test_any_code_at_the_margin_is_kept_and_words_after_it_are_cut(
    lines: list[str], after: list[str]
) -> None:
    answer = "    return f(r)\n" + "\n".join([*lines, "def f(r):\n    return 7 * r", *after])
    assert run_answer(AREA, answer)["area"](2) == 14


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
        "(\n" * LONG,
        BODY + "print(1)\n" * 7000 + "(\n" * 90,
        "<think>" * LONG,
    ],
    ids=[
        *("fence", "fence of spaces", "assignment", "word", "margin", "quotes", "fences"),
        *("brackets", "brackets after code", "reasoning"),
    ],
)
def test_an_answer_of_any_length_comes_to_a_program_in_no_time(answer: str) -> None:
    compile_answer(AREA, answer)


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
    namespace = run_answer(problem, form.format(body=problem.target, whole=whole))
    exec(compile(str(problem.meta["test"]), "<test>", "exec"), namespace)
    namespace["check"](namespace[entry])
