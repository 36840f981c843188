"""docs/design/attacks.md names tests that exist, and `make test-attacks` runs them all."""

import ast
import re
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
from scripts.list_attack_tests import PAGE, Attack, list_unshown, read_attacks

ROOT = PAGE.parents[2]
KINDS = [
    *("Escape", "API", "Model files", "Verdict forging", "Record", "Pages", "Gateway", "Network"),
    "Validity",
]
ATTACKS = read_attacks()


@cache
def parse_file(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def find_test(attack: Attack) -> ast.AST | None:
    """Return the named function, by the classes that it lies in."""
    file, *names = attack.test.split("::")
    found: ast.AST | None = parse_file(ROOT / file)
    for name in names:
        body = getattr(found, "body", [])
        found = next((node for node in body if getattr(node, "name", "") == name), None)
    return found


def test_there_are_at_least_80_attacks_of_nine_classes() -> None:
    assert len(ATTACKS) >= 80
    assert list(dict.fromkeys(attack.kind for attack in ATTACKS)) == KINDS
    assert min(Counter(attack.kind for attack in ATTACKS).values()) >= 10


def test_no_attack_and_no_test_is_named_twice() -> None:
    for column in ("attack", "test"):
        counts = Counter(getattr(attack, column) for attack in ATTACKS)
        assert [text for text, count in counts.items() if count > 1] == []


def test_every_named_test_exists() -> None:
    missing = [
        attack.test
        for attack in ATTACKS
        if not attack.test.split("::")[-1].startswith("test_")
        or not isinstance(find_test(attack), ast.FunctionDef)
    ]
    assert missing == []


def test_every_named_module_exists() -> None:
    named = {
        name
        for attack in ATTACKS
        for name in re.findall(r"`([a-z_]+(?:/[a-z_]+)*(?:\.py)?)`", attack.defence)
    }
    assert len(named) > 30
    assert [name for name in sorted(named) if not (ROOT / "src" / "agent2rl" / name).exists()] == []


def test_a_line_that_names_no_test_is_an_error(tmp_path: Path) -> None:
    page = tmp_path / "attacks.md"
    page.write_text(
        "## Escape\n\n| attack | what holds it | test |\n|---|---|---|\n| dig | a wall | none |\n"
    )
    with pytest.raises(ValueError, match="names no test"):
        read_attacks(page)


def test_an_attack_is_shown_if_a_case_of_its_test_passed() -> None:
    attacks = [
        Attack("Escape", name, "a wall", f"tests/test_walls.py::test_{name}") for name in ("dig", "climb")
    ]
    assert list_unshown(attacks, ["tests/test_walls.py::test_dig[spoon]"]) == [attacks[1]]
    assert list_unshown(attacks, []) == attacks


def test_a_run_says_at_its_end_how_many_attacks_it_did_not_show() -> None:
    attack = next(each for each in ATTACKS if each.test.startswith("tests/evaluators/test_scorers.py"))
    command = ["-m", "pytest", "-q", "-n", "0", "-p", "scripts.list_attack_tests", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [sys.executable, *command, attack.test], cwd=ROOT, capture_output=True, text=True, check=True
    )
    lines = done.stdout.splitlines()
    count = f"{len(ATTACKS) - 1} of {len(ATTACKS)} attacks not shown here (skipped or failed)"
    assert count in lines
    assert sum(line.startswith("not shown: ") for line in lines) == len(ATTACKS) - 1
