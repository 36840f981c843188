"""Sign a bundle's record with an SSH key, and check signatures, with OpenSSH's own program.

The signature covers the record, which has the hash of every file. It is made in a namespace of its own, so a
signature over anything else, such as a commit, does not count.
"""

import re
import subprocess
import tempfile
from pathlib import Path
from typing import Literal

from agent2rl.core.errors import MachineError, UserError
from agent2rl.core.records import Record
from agent2rl.record.untrusted_files import sanitize_line

NAMESPACE = "bundle@agent2rl"
PROGRAM = "ssh-keygen"
SECONDS = 60
FINGERPRINT = re.compile(r"with \S+ key (SHA256:\S+)")

SignatureState = Literal["unsigned", "not checked", "valid", "invalid"]


class SignatureCheck(Record):
    """What is known of a bundle's signature."""

    state: SignatureState
    """`not checked`: the signature fits, but nobody said whose keys are accepted."""
    signer: str | None = None
    """The name that the allowed signers give to the key."""
    key: str | None = None
    """InputFingerprint of the key."""
    reason: str = ""

    def __str__(self) -> str:
        if self.state == "unsigned":
            return "unsigned"
        if self.state == "valid":
            return f"signed by {self.signer} with the key {self.key}"
        if self.state == "not checked":
            return f"signed with the key {self.key}; its owner was not checked (--signers FILE)"
        return f"INVALID SIGNATURE: {self.reason}"


def sign_record(record: bytes, key: Path) -> bytes:
    """Return the signature over a bundle's record."""
    if not key.is_file():
        raise UserError(f"There is no key {key}.", "Name your private key, or the public one with an agent.")
    process = _run(["-Y", "sign", "-f", str(key), "-n", NAMESPACE], record)
    if process.returncode != 0 or not process.stdout.startswith(b"-----BEGIN SSH SIGNATURE-----"):
        error_text = sanitize_line(process.stderr.decode(errors="replace").strip(), 300)
        raise UserError(
            f"Cannot sign with {key}: {error_text}", "Name an SSH key, such as ~/.ssh/id_ed25519."
        )
    return process.stdout


def check_signature(record: bytes, signature: bytes | None, signers: Path | None) -> SignatureCheck:
    """Check a signature; with `signers` (a file of allowed signers), also whose it is."""
    if signers is not None and not signers.is_file():
        raise UserError(f"There is no file {signers}.", "Each line: NAME KEYTYPE KEY, see `man ssh-keygen`.")
    if signature is None:
        return SignatureCheck(state="unsigned")
    with tempfile.TemporaryDirectory(prefix="agent2rl-bundle-") as folder:
        file = Path(folder) / "signature"
        file.write_bytes(signature)
        fits = _run(["-Y", "check-novalidate", "-n", NAMESPACE, "-s", str(file)], record)
        match = FINGERPRINT.search(fits.stdout.decode(errors="replace"))
        if fits.returncode != 0 or match is None:
            return SignatureCheck(state="invalid", reason="it does not fit the bundle's record")
        if signers is None:
            return SignatureCheck(state="not checked", key=match[1])
        return _check_signer(record, file, signers.absolute(), match[1])


def _check_signer(record: bytes, signature: Path, signers: Path, key: str) -> SignatureCheck:
    """Find who signed. Each name that has this key is tried, since a key may be limited to a time."""
    where = ["-s", str(signature), "-f", str(signers)]
    names = _run(["-Y", "find-principals", *where], b"").stdout.decode(errors="replace").splitlines()
    for name in names:
        verified = _run(["-Y", "verify", "-n", NAMESPACE, "-I", name, *where], record)
        if verified.returncode == 0:
            return SignatureCheck(state="valid", signer=sanitize_line(name, 200), key=key)
    return SignatureCheck(state="invalid", key=key, reason=f"{signers} does not allow the key {key}")


def _run(arguments: list[str], content: bytes) -> "subprocess.CompletedProcess[bytes]":
    try:
        return subprocess.run(
            [PROGRAM, *arguments], input=content, capture_output=True, check=False, timeout=SECONDS
        )
    except FileNotFoundError as error:
        raise MachineError(f"There is no {PROGRAM} here.", "Install OpenSSH (openssh-client).") from error
    except subprocess.TimeoutExpired as error:
        raise MachineError(
            f"{PROGRAM} did not answer for {SECONDS} s.", "Use a key that does not wait for a touch."
        ) from error
