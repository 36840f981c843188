import os
from pathlib import Path

from safetensors.torch import load_file, save_file
import shutil

OUT = Path(os.environ["OUTPUT_DIR"])
parts = [OUT / "seed0", OUT / "seed1", OUT / "seed2"]
target = OUT / "soup"
shutil.copytree(parts[0], target, dirs_exist_ok=True)
average = None
for part in parts:
    tensors = load_file(part / "model.safetensors")
    if average is None:
        average = {name: tensor.float() / len(parts) for name, tensor in tensors.items()}
    else:
        for name, tensor in tensors.items():
            average[name] = average[name] + tensor.float() / len(parts)
save_file({name: tensor.half() for name, tensor in average.items()}, target / "model.safetensors", metadata={"format": "pt"})
print("soup of", len(parts))
