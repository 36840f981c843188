import sys
import tomllib
from pathlib import Path


def main(argv):
    cfg = tomllib.loads(Path(argv[1]).read_text())
    algo = cfg["run"]["algo"]
    if algo not in {"imitate", "prefer"}:
        raise SystemExit(f"unknown {algo}")
    module = __import__("recipes")
    getattr(module, algo)(cfg)


main(sys.argv)
