"""A container of Podman: podman, or podman:IMAGE for the programs of an image."""

from agent2rl.core.sandbox import Sandbox
from agent2rl.sandboxes.container_sandbox import ContainerSandbox


def parse(image: str) -> Sandbox:
    return ContainerSandbox("podman", image)


SANDBOX: Sandbox = ContainerSandbox("podman")
