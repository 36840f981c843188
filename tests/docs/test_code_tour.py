"""The pages that show a newcomer the code name what is there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "agent2rl"
LIFE = (ROOT / "docs" / "life-of-a-submission.md").read_text(encoding="utf-8")
MAP = (ROOT / "docs" / "package-map.md").read_text(encoding="utf-8")
STEPS = re.split(r"^\d+\. ", LIFE.partition("\n## ")[0], flags=re.MULTILINE)[1:]
WORDS_OF_THE_RECORD = {"submitted", "graded", "report.json", "report.md", "report.html"}


def read_rows(heading: str) -> list[tuple[str, ...]]:
    """Return the cells of the table that begins with this heading."""
    _, _, rest = MAP.partition(f"| {heading} |")
    table = rest.partition("\n\n")[0].splitlines()[2:]
    return [tuple(cell.strip() for cell in line.strip("|").split("|")) for line in table]


def test_the_life_of_a_submission_has_12_files_to_read_and_all_exist() -> None:
    bold = re.findall(r"\*\*`([\w/]+\.py)`\*\*", LIFE)
    optional = re.findall(r"\(`([\w/]+\.py)`", LIFE)
    assert len(bold) == len(set(bold)) == 12
    assert len(set(optional) - set(bold)) == 6
    assert {*bold, *optional} == set(re.findall(r"`([\w/]+\.py)`", LIFE))
    assert [path for path in (*bold, *optional) if not (PACKAGE / path).is_file()] == []


@pytest.mark.parametrize("number", range(1, len(STEPS) + 1))
def test_a_step_names_what_is_in_its_files_or_those_of_earlier_steps(number: int) -> None:
    files = re.findall(r"`([\w/]+\.py)`", "".join(STEPS[:number]))
    code = "".join((PACKAGE / path).read_text(encoding="utf-8") for path in files)
    names = {name for name in re.findall(r"`([\w.]+)`", STEPS[number - 1]) if not name.endswith(".py")}
    names = {name.rpartition(".")[2] for name in names - WORDS_OF_THE_RECORD}
    assert [name for name in sorted(names) if not re.search(rf"\b{name}\b", code)] == []


def test_the_package_map_names_packages_and_modules_that_exist() -> None:
    rows = read_rows("package")
    assert len(rows) > 25
    for packages, purpose, start in rows:
        folders = re.findall(r"`([\w/]+?)/?(?:\.py)?`", packages)
        assert folders, packages
        for name in folders:
            assert (PACKAGE / name).is_dir() or (PACKAGE / f"{name}.py").is_file(), name
        for path in re.findall(r"`([\w/]+(?:\.py|/))`", f"{start} {purpose}"):
            places = (PACKAGE, *(PACKAGE / name for name in folders))
            assert any((place / path).exists() for place in places), f"{packages}: {path}"


def test_the_package_map_leaves_out_no_package() -> None:
    named = {name for row in read_rows("package") for name in re.findall(r"`([\w]+)/?(?:\.py)?`", row[0])}
    there = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert there - named == set()


def test_the_folders_outside_the_package_exist() -> None:
    for row in read_rows("folder"):
        for folder in re.findall(r"`([\w/]+)/`", row[0]):
            assert (ROOT / folder).is_dir(), folder
