"""The generated functions: right by their own tests, told from near misses, splits that share nothing."""

import ast
import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

import agent2rl
from agent2rl.core.task import Example
from agent2rl.tasks.humaneval.mini import NAMES, STEPS, Part, generate_problems

SIZES: dict[Part, int] = {"train": 2000, "feedback": 150, "heldout": 150}
SEEDLING = Path(agent2rl.__file__).parent / "models/seedling/files"


@cache
def generate_parts() -> dict[Part, tuple[Example, ...]]:
    return {part: generate_problems(part, size) for part, size in SIZES.items()}


def list_examples() -> list[Example]:
    return [example for part in generate_parts().values() for example in part]


def disjoint(sets: Iterable[set[str]]) -> bool:
    return all(not left & right for left, right in combinations(list(sets), 2))


def family(example: Example) -> str:
    """The answer without its constants."""
    return re.sub(r"'[a-z]'|\d+", "_", example.target)


def constants(example: Example) -> str:
    """As the docstring names them."""
    told = example.prompt.splitlines()[1]
    return str(re.findall(r"'[a-z]'|\d+", told))


def defined(source: str, name: str) -> Any:
    namespace: dict[str, Any] = {}
    exec(source, namespace)
    return namespace[name]


def cases(example: Example) -> list[tuple[Any, Any]]:
    """Inputs and the right outputs."""
    found = re.findall(r"assert candidate\((.+)\) == (.+)\n", str(example.meta["test"]))
    return [(ast.literal_eval(value), ast.literal_eval(right)) for value, right in found]


@cache
def inputs() -> dict[str, dict[str, Any]]:
    """All that any problem is tested with, by the name of the parameter."""
    found: dict[str, dict[str, Any]] = defaultdict(dict)
    for example in list_examples():
        found[parameter(example)].update({repr(value): value for value, _ in cases(example)})
    return found


def parameter(example: Example) -> str:
    return example.prompt.partition("(")[2].partition(")")[0]


def outcome(function: Callable[[Any], Any], value: Any) -> Any:
    try:
        return function(value)
    except Exception as error:
        return type(error)


def near_misses(example: Example) -> Iterator[str]:
    """Wrong answers that are easily given: nothing, the input, a step, the other order, other constants."""
    lines = example.target.splitlines()
    done = [re.sub(r"^    (return|\w+ =) ", "", line) for line in lines]
    given = parameter(example)
    yield "    return None\n"
    yield f"    return {given}\n"
    if len(lines) == 2:
        yield f"    return {done[0]}\n"
        yield f"    return {done[1]}\n"
        yield f"    {given} = {done[1]}\n    return {done[0]}\n"
    for found in re.finditer(r"(?<=')[a-z](?=')|\b(?<!== )\d+(?! ==)", example.target):
        before, it, after = example.target[: found.start()], found[0], example.target[found.end() :]
        others = [int(it) - 1, int(it) + 1] if it.isdigit() else sorted({"a", "e", "t"} - {it})
        yield from (f"{before}{other}{after}" for other in others)


def test_the_splits_have_the_sizes_they_should() -> None:
    assert {name: len(part) for name, part in generate_parts().items()} == SIZES
    assert generate_problems("feedback", 20) == generate_parts()["feedback"][:20]


def test_the_problems_are_the_same_bytes_everywhere() -> None:
    """Whoever changes this digest changes the task: scores from before and after do not compare."""
    text = json.dumps([asdict(example) for example in list_examples()], sort_keys=True)
    assert hashlib.sha256(text.encode()).hexdigest() == (
        "a365441d16ac0c6c6f967f925eebdab3f20e45772c1c751d6ff12769cdbbb847"
    )


@pytest.mark.parametrize("split", SIZES)
def test_every_answer_passes_its_tests_and_gives_what_the_docstring_shows(split: Part) -> None:
    for example in generate_parts()[split]:
        name, check = str(example.meta["entry_point"]), str(example.meta["test"])
        function = defined(example.prompt + example.target, name)
        defined(check, "check")(function)
        assert 4 <= len(cases(example)) <= 8
        called, shown = re.findall(r">>> (.+)\n    (.+)\n", example.prompt)[0]
        assert repr(eval(called, {name: function})) == shown
        assert f"candidate({called.partition('(')[2]} ==" not in check


@pytest.mark.parametrize("split", SIZES)
def test_an_answer_that_is_nearly_right_fails_wherever_it_is_wrong(split: Part) -> None:
    """That it is right after all is tried on what all other problems are tested with."""
    for example in generate_parts()[split]:
        name, shown = str(example.meta["entry_point"]), cases(example)
        right = defined(example.prompt + example.target, name)
        for answer in near_misses(example):
            wrong = defined(example.prompt + answer, name)
            if all(outcome(wrong, value) == output for value, output in shown):
                for value in inputs()[parameter(example)].values():
                    output = outcome(right, value)
                    assert isinstance(output, type) or outcome(wrong, value) == output, (
                        example.prompt + answer
                    )


def test_neither_the_input_nor_one_step_nor_one_answer_will_do() -> None:
    for example in list_examples():
        shown = cases(example)
        *_, last = example.target.splitlines()
        assert any(value != output for value, output in shown)
        assert len({repr(output) for _, output in shown}) > 1
        first = re.sub(r"^    \w+ = (.*)\n.*\n", r"    return \1\n", example.target)
        for answer in {first, f"{last}\n"} - {example.target}:
            part = defined(example.prompt + answer, str(example.meta["entry_point"]))
            assert any(outcome(part, value) != output for value, output in shown)


def test_no_family_and_no_constants_stand_in_two_splits() -> None:
    assert disjoint({family(example) for example in part} for part in generate_parts().values())
    assert disjoint({constants(example) for example in part} - {"[]"} for part in generate_parts().values())


def test_training_has_every_step_in_several_families_and_all_its_words() -> None:
    families = {family(example) for example in generate_parts()["train"]}
    for step in STEPS:
        code = re.sub(r"'?\{\w\}'?|\d+", "_", step.code)
        assert sum(bool(re.search(rf"(= |return ){re.escape(code)}\n", found)) for found in families) >= 3
    words = {
        split: set(re.findall(r"[a-z]{2,}", " ".join(e.prompt.splitlines()[1].lower() for e in part)))
        for split, part in generate_parts().items()
    }
    assert words["feedback"] | words["heldout"] <= words["train"]


def test_no_prompt_is_asked_twice() -> None:
    assert len({example.prompt for example in list_examples()}) == len(list_examples())
    assert len({example.id for example in list_examples()}) == len(list_examples())


def test_a_name_says_nothing_of_the_split() -> None:
    for part in generate_parts().values():
        assert {example.meta["entry_point"] for example in part} == set(NAMES)


def test_problems_are_short_and_in_the_form_of_the_real_ones() -> None:
    tokenizer = AutoTokenizer.from_pretrained(SEEDLING)
    for example in list_examples():
        assert re.fullmatch(r'def \w+\(\w+\):\n    """.+\.\n    >>> .+\n    .+\n    """\n', example.prompt)
        assert all(line.startswith("    ") for line in example.target.splitlines())
        assert example.target.endswith("\n")
    assert max(map(len, tokenizer([example.prompt for example in list_examples()])["input_ids"])) <= 100
    assert max(map(len, tokenizer([example.target for example in list_examples()])["input_ids"])) <= 50
