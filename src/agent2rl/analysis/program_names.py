"""Names of programs that start other programs."""

import re

PYTHON = re.compile(r"^(?:.*/)?(?:python|pypy)[\d.]*$")
SHELLS = {"bash", "sh", "zsh", "dash", "source", "."}
LAUNCHERS = {
    "torchrun", "accelerate", "deepspeed", "torch.distributed.run", "torch.distributed.launch", "ipython",
    "accelerate.commands.launch", "horovodrun", "mpirun", "fabric", "coverage", "ray",
}  # fmt: skip
