import sys

from lib.config import load
from lib.trainer import Learner


def main():
    cfg = load(sys.argv[1] if len(sys.argv) > 1 else "code/cfg.json")
    learner = Learner(cfg)
    learner.run()
    learner.save()


if __name__ == "__main__":
    main()
