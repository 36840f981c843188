"""What the engines leave out of transformers, and that it is there all the same for who asks."""

import subprocess
import sys

PROGRAM = """
import sys
import agent2rl.engines.transformers
import transformers
from transformers.models import LlamaConfig, llama
from transformers.models.qwen2 import Qwen2Config

assert not {name for name in sys.modules if name.split(".")[0] == "scipy"}, "scipy was imported"
assert llama is transformers.models.llama is sys.modules["transformers.models.llama"]
assert LlamaConfig is transformers.LlamaConfig is transformers.models.LlamaConfig
assert Qwen2Config is transformers.models.qwen2.Qwen2Config
assert not hasattr(transformers.models, "no_such_model")
import scipy
assert scipy.__name__ == "scipy"
"""


def test_the_engine_imports_no_scipy_and_models_are_found_by_every_name() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
