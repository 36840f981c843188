"""Looks for training examples in your files, by the rule with which the harness looks for evaluation data.

    python check_contamination.py output code
    python check_contamination.py my_validation_set.jsonl

After your time the harness reads every file that you left in the workspace and looks for the examples that
your model is graded on: their prompts, their answers and what else belongs to them. What it finds is on the
record, with the passages, and marks the run as contaminated. You have no such examples, so this program takes
data/train.jsonl in their place: try it on a copied training question to see what is found, or on a validation
set of your own to see that nothing of the training data is in it.

The rule: words are runs of letters and digits, whatever their case and what stands between them. A passage is
found that shares at least 30% of an example's sequences of 8 words, or 30 words in a row. Archives (gzip,
bzip2, xz, zip) are looked into, links are not followed. The harness does not count what you were given
yourself: training data, description, instructions.

Exit code: 0 where nothing is found, 1 where something is, 2 where the arguments are wrong.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path

from agent2rl.analysis.contamination import ExamplePart, NgramIndex, PassageMatch, search_chunks
from agent2rl.grading.workspace_documents import WorkspaceDocuments

HERE = Path(__file__).resolve().parent
SHOWN_CHARACTERS = 200


def read_train_parts(path: Path) -> Iterator[ExamplePart]:
    """Every string of a row but its name; `prompt` is the question again, in a chat."""
    for line in path.read_text(encoding="utf-8").split("\n"):
        if line.strip():
            row = json.loads(line)
            for name, value in row.items():
                if isinstance(value, str) and name not in ("id", "prompt"):
                    yield ExamplePart("train", str(row["id"]), name, value)


def find_matches(index: NgramIndex, path: Path, reference: Path) -> Iterator[tuple[Path, PassageMatch]]:
    """What is found in a file or below a directory; the training data itself is passed over."""
    root, only = (path, None) if path.is_dir() else (path.parent, path.name)
    leftovers = WorkspaceDocuments(root)
    for document in leftovers.read_documents(only):
        file = root / document.path
        if file != reference:
            yield from ((file, match) for match in search_chunks(index, document.chunks))
    for reason, left in leftovers.left_out.items():
        print(f"{path}: {left.files} files not read ({reason})", file=sys.stderr)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, usage="%(prog)s PATH..."
    )
    parser.add_argument("paths", nargs="+", type=Path, metavar="PATH", help="a file, or a directory")
    parser.add_argument("--train", type=Path, default=HERE / "data" / "train.jsonl", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    try:
        index = NgramIndex(read_train_parts(options.train))
    except (OSError, ValueError, KeyError, AttributeError) as error:
        parser.error(f"{options.train} cannot be read: {error}")
    for path in options.paths:
        if not path.is_dir() and not path.is_file():
            parser.error(f"there is no file or directory {path}")
    found = 0
    for path in options.paths:
        for file, match in find_matches(index, path.resolve(), options.train.resolve()):
            found += 1
            print(f"{file}: {match.part.example} ({match.part.name}), {match.words} words, {match.share:.0%}")
            print(f"    {match.text[:SHOWN_CHARACTERS]}")
    print(f"{found} passages found" if found else "nothing found")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
