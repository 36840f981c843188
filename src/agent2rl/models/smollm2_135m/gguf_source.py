"""A GGUF file as `gguf` reads it: fields by name, tensors as floats."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]


class GgufSource:
    def __init__(self, path: Path) -> None:
        self._reader = gguf.GGUFReader(path)

    def __getitem__(self, field: str) -> Any:
        return self._reader.fields[field].contents()

    def read_tensors(self) -> Iterator[tuple[str, Floats]]:
        for tensor in self._reader.tensors:
            yield tensor.name, gguf.dequantize(tensor.data, tensor.tensor_type)
