"""Verify a bundle: its form, its signature, and the record of the run that is in it."""

from pathlib import Path

from agent2rl.bundles.bundle_record import list_fingerprints
from agent2rl.bundles.signatures import SignatureCheck, check_signature
from agent2rl.bundles.unpacking import OpenedBundle
from agent2rl.core.errors import UserError
from agent2rl.grading.verify import UncheckedFiles, Verification, verify_run
from agent2rl.record.reader import read_run


class BundleVerification(Verification):
    """The result of verifying a bundle. `holds` is about the record; see `accepted`."""

    run_id: str
    signature: SignatureCheck
    signature_required: bool
    """Whether allowed signers were named."""

    @property
    def accepted(self) -> bool:
        """Whether the record holds and the signature is as required."""
        state = self.signature.state
        return self.holds and state != "invalid" and (state == "valid" or not self.signature_required)


def verify_bundle(
    bundle: OpenedBundle, head: str | None = None, signers: Path | None = None
) -> BundleVerification:
    """Verify an opened bundle, of which no weights were left packed."""
    signature = check_signature(bundle.encoded, bundle.signature, signers)
    verification = verify_run(bundle.paths, head, UncheckedFiles(bundle.record.unchecked))
    fields = verification.model_dump(exclude={"notes", "not_covered"})
    if verification.holds and (fault := _find_mismatch(bundle, verification)):
        fields |= {"holds": False, "fault": fault}
    return BundleVerification(
        **fields,
        notes=verification.notes,
        not_covered=verification.not_covered,
        run_id=bundle.record.run_id,
        signature=signature,
        signature_required=signers is not None,
    )


def _find_mismatch(bundle: OpenedBundle, verification: Verification) -> str | None:
    """Return what the bundle's own record says wrongly of the run, or None."""
    record = bundle.record
    try:
        view = read_run(bundle.paths)
    except UserError as error:
        return error.message
    if view.result is None:
        return "the run has no readable result"
    opened = next((entry.data.get("run_id") for entry in view.chain.entries if entry.kind == "opened"), None)
    if not record.run_id == view.result.run_id == opened:
        return "the bundle names another run than the record"
    if record.ledger_head != verification.head:
        return "the bundle names another last ledger record"
    if record.fingerprints != list_fingerprints(view):
        return "the bundle names other fingerprints than the record"
    return None
