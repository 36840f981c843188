"""Search your files for training examples, with the same rule as the harness's search for evaluation data.

    python check_contamination.py output code
    python check_contamination.py my_validation_set.jsonl

It needs agent2rl. If your `python` does not have it, start it with `$AGENT2RL_PYTHON` instead.

After your time the harness reads every file that you left in the workspace and searches for the examples that
your model is graded on: their prompts, their answers and their other fields. It records the passages that
match, and a match marks the run as contaminated. Nothing else does. You do not have these examples, so this
program searches for data/train.jsonl instead, which you may copy and train on. So a passage that it finds is
harmless: it does not mark the run. Try it on a copied training question to see how close a text must be to
match, or on your own validation set to check that it contains no training data.

The rule: words are sequences of letters and digits; case and punctuation do not matter. A passage matches if
it shares at least 30% of an example's sequences of 8 words, or 30 words in a row. Archives (gzip, bzip2, xz,
zip) are opened, and links are not followed. The harness ignores text that you were given: training data,
description, instructions.

Exit code: 0 if nothing matches, 1 if something matches, 2 if the arguments are wrong.
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
HARMLESS = (
    "Harmless: they match training data, which you were given, so they do not mark the run as contaminated. "
    "Only passages of evaluation examples do, and this program cannot search for those."
)
UNKNOWN = (
    "This program searches for training data only. Passages of evaluation examples, which it does not know, "
    "would mark the run as contaminated."
)


def read_train_parts(path: Path) -> Iterator[ExamplePart]:
    """Yield every string of a row except its id and `prompt`, which repeats the question as a chat."""
    for line in path.read_text(encoding="utf-8").split("\n"):
        if line.strip():
            row = json.loads(line)
            for name, value in row.items():
                if isinstance(value, str) and name not in ("id", "prompt"):
                    yield ExamplePart("train", str(row["id"]), name, value)


def find_matches(index: NgramIndex, path: Path, reference: Path) -> Iterator[tuple[Path, PassageMatch]]:
    """Yield the matches in a file or below a directory; the training data itself is skipped."""
    root, only = (path, None) if path.is_dir() else (path.parent, path.name)
    leftovers = WorkspaceDocuments(root)
    for document in leftovers.read_documents(only):
        file = root / document.path
        if file != reference:
            yield from ((file, match) for match in search_chunks(index, document.chunks))
    for reason, unread in leftovers.left_out.items():
        print(f"{path}: {unread.files} files not read ({reason})", file=sys.stderr)


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
            parser.error(f"no such file or directory: {path}")
    passages = 0
    for path in options.paths:
        for file, match in find_matches(index, path.resolve(), options.train.resolve()):
            passages += 1
            print(f"{file}: {match.part.example} ({match.part.name}), {match.words} words, {match.share:.0%}")
            print(f"    {match.text[:SHOWN_CHARACTERS]}")
    print(f"{passages} passages found. {HARMLESS}" if passages else f"nothing found. {UNKNOWN}")
    return 1 if passages else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
