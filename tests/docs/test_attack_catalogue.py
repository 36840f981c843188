"""docs/design/attacks.md names tests that exist, and `make test-attacks` runs them all."""

import ast
import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
from scripts.list_attack_tests import PAGE, Attack, read_attacks

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
