import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
STEPS = [
    ("warmup.py", ["--target", "output/warm"]),
    ("improve.py", ["--start", "output/warm", "--target", "output/final"]),
]


def main():
    for name, extra in STEPS:
        print("==", name, flush=True)
        subprocess.run([sys.executable, str(HERE / name), *extra], check=True)


if __name__ == "__main__":
    main()
