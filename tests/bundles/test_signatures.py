"""Bundles signed with SSH keys, by OpenSSH itself."""

import shutil
import subprocess
from pathlib import Path

import pytest

from agent2rl.bundles.signatures import NAMESPACE, check_signature, sign_record
from agent2rl.core.errors import UserError
from agent2rl.record.paths import RunPaths
from tests.helpers.bundle_files import BundleParts
from tests.helpers.run_launcher import RunLauncher

pytestmark = pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="OpenSSH is not installed")
RECORD = b'{"format": 1}'


def make_key(folder: Path, name: str, *options: str) -> Path:
    path = folder / name
    kind = options or ("-t", "ed25519")
    subprocess.run(["ssh-keygen", "-q", *kind, "-N", "", "-C", name, "-f", path], check=True)
    return path


def write_signers(folder: Path, *lines: str) -> Path:
    path = folder / "signers"
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def read_public_key(key: Path) -> str:
    return " ".join(key.with_suffix(".pub").read_text().split()[:2])


def test_a_signature_is_unsigned_unchecked_valid_or_invalid(tmp_path: Path) -> None:
    alice, bob = make_key(tmp_path, "alice"), make_key(tmp_path, "bob")
    signers = write_signers(tmp_path, f"alice@example.org {read_public_key(alice)}")
    signature = sign_record(RECORD, alice)
    assert check_signature(RECORD, None, signers).state == "unsigned"
    unchecked = check_signature(RECORD, signature, None)
    assert unchecked.state == "not checked"
    assert "its owner was not checked" in str(unchecked)
    valid = check_signature(RECORD, signature, signers)
    assert (valid.state, valid.signer, valid.key) == ("valid", "alice@example.org", unchecked.key)
    for record, signed in ((RECORD + b" ", signature), (RECORD, b"junk"), (RECORD, signature[:-40])):
        for names in (None, signers):
            assert check_signature(record, signed, names).state == "invalid"
    stranger = check_signature(RECORD, sign_record(RECORD, bob), signers)
    assert stranger.state == "invalid"
    assert "does not allow the key SHA256:" in stranger.reason


def test_a_signature_for_another_purpose_does_not_count(tmp_path: Path) -> None:
    alice = make_key(tmp_path, "alice")
    command = ["ssh-keygen", "-q", "-Y", "sign", "-f", str(alice), "-n", "git"]
    for_git = subprocess.run(command, input=RECORD, capture_output=True, check=True).stdout
    assert check_signature(RECORD, for_git, None).state == "invalid"
    public = read_public_key(alice)
    signature = sign_record(RECORD, alice)
    other = write_signers(tmp_path, f'alice namespaces="git" {public}')
    assert check_signature(RECORD, signature, other).state == "invalid"
    own = write_signers(
        tmp_path, f'old valid-before="20200101" {public}', f'new namespaces="{NAMESPACE}" {public}'
    )
    assert check_signature(RECORD, signature, own).signer == "new"


def test_a_file_that_is_no_key_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("no key")
    with pytest.raises(UserError, match="Cannot sign with"):
        sign_record(RECORD, tmp_path / "key")
    with pytest.raises(UserError, match="There is no file"):
        check_signature(RECORD, None, tmp_path / "signers")


def test_verify_shows_who_signed_a_bundle_and_requires_one_of_the_signers(
    launcher: RunLauncher, earlier_run: RunPaths
) -> None:
    home, key = launcher.home, make_key(launcher.home, "alice")
    signers = str(write_signers(home, f"alice {read_public_key(key)}"))
    for name, options in (("signed", ("--sign", str(key))), ("plain", ())):
        done = launcher.cli("bundle", str(earlier_run.root), "-o", f"{name}.tar.zst", *options)
        assert done.returncode == 0, done.stderr
    verified = launcher.cli("verify", "signed.tar.zst", "--signers", signers)
    assert verified.returncode == 0, verified.stdout
    assert "signature: signed by alice with the key SHA256:" in verified.stdout
    assert launcher.cli("verify", "signed.tar.zst").returncode == 0
    assert launcher.cli("verify", "plain.tar.zst").returncode == 0
    unsigned = launcher.cli("verify", "plain.tar.zst", "--signers", signers)
    assert unsigned.returncode == 1
    assert "signature: unsigned" in unsigned.stdout
    parts = BundleParts.read((home / "signed.tar.zst").read_bytes())
    (home / "changed.tar.zst").write_bytes(parts.with_record(made_by="9").build())
    changed = launcher.cli("verify", "changed.tar.zst")
    assert changed.returncode == 1
    assert "INVALID SIGNATURE" in changed.stdout
    directory = launcher.cli("verify", str(earlier_run.root), "--signers", signers)
    assert directory.returncode == 2
    assert "only bundles are signed" in directory.stderr
