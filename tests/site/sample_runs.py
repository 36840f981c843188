"""Runs of a site that nobody ran."""

from agent2rl.analysis.campaigns.run_digest import RunDigest
from agent2rl.core.records import Promise
from agent2rl.site.collected_runs import PageCheck, PageTile, PublishedRun
from agent2rl.site.listing import REFERENCE_AGENTS, RunChecks, RunListing
from tests.helpers.run_digests import make_digest

PROMISES = (Promise(name="no network", holds=True), Promise(name="no capabilities", holds=True))


def make_published_run(
    gain: float | None = 5.0,
    run_id: str = "r",
    verified: bool = True,
    text: str = "a text",
    **known: object,
) -> PublishedRun:
    """A verified run that gained so much; `text` is what pages say of it."""
    digest = make_digest(gain, run_id, **{"isolation": "full", **known})
    return PublishedRun(
        digest=digest,
        listing=_make_listing(digest, verified, text),
        title=text,
        sentence=text,
        tiles=(PageTile(label="Gain", value=text, note=text, tone="good"),),
        integrity=(PageCheck(name="Evaluation data", tone="good", verdict="none found", text=text),),
        submissions=(("1", text, "scored", "25.00", "[20, 30]", "+5.00", "1 s"),),
        assets=(("model", text, "0" * 64),),
        figures={},
    )


def _make_listing(digest: RunDigest, verified: bool, text: str) -> RunListing:
    fields = {name: value for name, value in digest.model_dump().items() if name in RunListing.model_fields}
    more = {
        "setting": digest.task_setting,
        "engine": "scripted",
        "started": "2026-01-01 00:00",
        "excluded": digest.excluded,
        "reference": REFERENCE_AGENTS.get(digest.agent, ""),
        "baseline_ranks": True,
        "gain": digest.gain,
        "gain_low": None,
        "gain_high": None,
        "real": digest.succeeded,
        "seconds": digest.total.seconds,
        "seconds_to_best": digest.seconds_to_best,
        "tokens": digest.total.tokens,
        "usd": digest.total.usd,
        "points_per_usd": digest.gain,
        "gpu_seconds": None,
        "sandbox": "bubblewrap",
        "promises": PROMISES,
        "checks": RunChecks(verified=verified, fault=None if verified else text, head="ab" * 32),
    }
    return RunListing.model_validate({**fields, **more})
