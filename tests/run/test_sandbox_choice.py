"""`--sandbox auto`: the first sandbox that works, with the reason, and a verdict that a person can act on."""

from pathlib import Path

import pytest

from agent2rl import registry
from agent2rl.core.errors import MachineError
from agent2rl.core.records import Budget, Isolation, Promise, RunSpec
from agent2rl.record.recorder import Recorder
from agent2rl.record.run_lock import RunLock
from agent2rl.run import sandbox_choice
from agent2rl.run.preflight import check_machine, make_verdict
from agent2rl.run.private_places import PrivatePlaces
from agent2rl.run.run_steps import prepare_sandbox
from agent2rl.run.settings import read_settings
from agent2rl.sandboxes import landlock
from agent2rl.system.packages import suggest_install

PLACES = PrivatePlaces()
NO_PERMISSIONS = (
    "The sandbox did not start: bwrap: No permissions to create new namespace, likely because the kernel "
    "does not allow non-privileged user namespaces. The container's system-call filter forbids it."
)
REMEDY = "Whoever starts the container must add `--security-opt seccomp=unconfined`."
BUBBLEWRAP = Isolation(
    sandbox="bubblewrap",
    isolates=True,
    promises=(Promise(name="the sandbox starts", holds=False, hint=NO_PERMISSIONS, remedy=REMEDY),),
)
CONFINED = Isolation(
    sandbox="confined",
    isolates=True,
    promises=(
        Promise(name="no capabilities", holds=True),
        Promise(name="host processes are invisible", holds=False, hint="no pid namespace", promised=False),
    ),
)
FULL = Isolation(sandbox="bubblewrap", isolates=True, promises=(Promise(name="no capabilities", holds=True),))

CLOSED_SANDBOX = """
from agent2rl.core.errors import MachineError
from agent2rl.sandboxes import selftest


class ClosedSandbox:
    def check(self, hidden=()):
        return selftest.run_self_test("closed", self, hidden)

    def run(self, command, enclosure, stop):
        raise MachineError("It is closed.")


SANDBOX = ClosedSandbox()
"""


@pytest.fixture
def no_programs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Neither bwrap nor a container engine is installed."""
    monkeypatch.setenv("PATH", str(tmp_path))


def require_confined() -> None:
    if not landlock.read_version() or registry.find_sandbox("confined").check().broken:
        pytest.skip("the confined sandbox cannot run here")


def test_bubblewrap_is_the_first_choice() -> None:
    if registry.find_sandbox("bubblewrap").check().broken:
        pytest.skip("bubblewrap cannot run here")
    chosen = sandbox_choice.choose_sandbox(PLACES)
    assert (chosen.isolation.sandbox, chosen.isolation.level, chosen.isolation.reason) == (
        "bubblewrap",
        "full",
        "",
    )


def test_confined_is_chosen_where_nothing_else_is_installed_and_the_reason_is_one_line(
    no_programs: None,
) -> None:
    require_confined()
    isolation = sandbox_choice.choose_sandbox(PLACES).isolation
    assert (isolation.sandbox, isolation.level) == ("confined", "partial")
    assert isolation.reason.startswith("bubblewrap: ")
    assert "not installed" in isolation.reason
    assert "\n" not in isolation.reason
    assert isolation.remedy.startswith(f"To get bubblewrap: {suggest_install('bubblewrap')}")
    opened = sandbox_choice.open_sandbox("auto", PLACES)
    assert opened.sandbox.sandbox is registry.find_sandbox("confined")
    assert opened.description.startswith("sandbox: confined, which isolates in part. It does not promise: ")


def test_local_is_never_chosen_by_itself(no_programs: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(landlock, "read_version", lambda: 0)
    for choose in (sandbox_choice.choose_sandbox, lambda places: sandbox_choice.open_sandbox("auto", places)):
        with pytest.raises(MachineError) as caught:
            choose(PLACES)
        assert "not installed" in caught.value.message
        assert "no Landlock" in caught.value.message
        assert caught.value.hint.startswith(f"To get bubblewrap: {suggest_install('bubblewrap')}")
        assert "--sandbox local" in caught.value.hint


def test_the_remedy_is_that_of_the_best_sandbox_whose_cause_is_known() -> None:
    unknown = Promise(name="the sandbox starts", holds=False, hint="Who knows. Report it.")
    bubblewrap = Isolation(sandbox="bubblewrap", isolates=True, promises=(unknown,))
    group = Promise(name="the sandbox starts", holds=False, remedy="As root: `usermod -aG docker USER`.")
    docker = Isolation(sandbox="docker", isolates=True, promises=(group,))
    assert sandbox_choice.describe_remedy([bubblewrap, docker]).startswith("To get docker: As root: `usermod")
    assert make_verdict([bubblewrap, docker, CONFINED]).hint.startswith("To get docker: ")
    assert sandbox_choice.describe_remedy([bubblewrap]) == ""


def test_a_sandbox_that_is_named_and_does_not_work_is_refused_with_the_reason(no_programs: None) -> None:
    with pytest.raises(MachineError, match="bubblewrap cannot be used") as caught:
        sandbox_choice.open_sandbox("bubblewrap", PLACES)
    assert suggest_install("bubblewrap") in caught.value.hint
    assert sandbox_choice.open_sandbox("local", PLACES).description == (
        "sandbox: local, which isolates nothing"
    )


def test_a_sandbox_that_this_version_lacks_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox_choice, "CANDIDATES", ("no-such-sandbox", "bubblewrap", "local"))
    assert sandbox_choice.list_candidates() == ["bubblewrap", "local"]


def test_the_reason_quotes_what_the_program_said_in_a_few_words() -> None:
    reason = sandbox_choice.describe_failure(BUBBLEWRAP)
    assert reason.startswith("bwrap: No permissions to create new namespace")
    assert len(reason) <= sandbox_choice.REASON_CHARACTERS
    broken = Isolation(
        sandbox="docker", isolates=True, promises=(Promise(name="no capabilities", holds=False),)
    )
    assert sandbox_choice.describe_failure(broken) == "a promise does not hold (no capabilities)"


def test_the_verdict_names_the_sandbox_its_gaps_and_how_to_get_a_better_one() -> None:
    verdict = make_verdict([BUBBLEWRAP, CONFINED])
    assert verdict.state == "ok"
    assert "runs use the sandbox confined, which isolates in part" in verdict.detail
    assert "host processes are invisible" in verdict.detail
    assert verdict.hint.startswith("To get bubblewrap: ")
    assert "--security-opt seccomp=unconfined" in verdict.hint


def test_the_verdict_of_a_sandbox_that_was_named_names_the_way_to_a_better_one() -> None:
    assert make_verdict([CONFINED], [BUBBLEWRAP]).hint.startswith("To get bubblewrap: ")
    assert (
        make_verdict([CONFINED], [FULL]).hint == "bubblewrap works here, and is better: --sandbox bubblewrap"
    )
    assert make_verdict([CONFINED]).hint == ""


def test_check_of_a_named_sandbox_tries_the_better_ones_too(no_programs: None) -> None:
    require_confined()
    verdict = list(check_machine(read_settings(), "confined"))[-1]
    assert "isolates in part" in verdict.detail
    assert verdict.hint.startswith(f"To get bubblewrap: {suggest_install('bubblewrap')}")


def test_the_verdict_of_a_full_sandbox_asks_for_nothing() -> None:
    verdict = make_verdict([FULL])
    assert (verdict.state, verdict.hint) == ("ok", "")
    assert "keeps all 1 promises" in verdict.detail


def test_the_verdict_without_a_sandbox_is_broken() -> None:
    verdict = make_verdict([BUBBLEWRAP])
    assert (verdict.state, verdict.detail) == ("broken", "no sandbox works here, so no run can start")
    local = make_verdict([Isolation(sandbox="local", isolates=False)])
    assert (local.state, local.detail) == ("broken", "the sandbox local isolates nothing")


def test_the_verdict_of_a_named_sandbox_that_fails_does_not_speak_of_all_sandboxes() -> None:
    broken = CONFINED.model_copy(update={"promises": BUBBLEWRAP.promises})
    verdict = make_verdict([broken], [FULL], "confined")
    assert (verdict.state, verdict.detail) == ("broken", "the sandbox confined does not work here")
    assert verdict.hint == "bubblewrap works here: --sandbox bubblewrap"
    unknown = broken.model_copy(update={"promises": (Promise(name="the sandbox starts", holds=False),)})
    assert make_verdict([unknown], [FULL], "confined") == verdict
    for tried in ([broken], []):
        assert make_verdict(tried, [], "confined").detail == "the sandbox confined does not work here"
    verdict = make_verdict([broken], [BUBBLEWRAP], "confined")
    assert verdict.detail == "the sandbox confined does not work here, and no other one does"
    assert verdict.hint.startswith("To get confined: Whoever starts the container ")


def test_check_of_a_named_sandbox_that_is_broken_tries_the_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The plugin is in a module of its own, so it is not one of the candidates."""
    require_confined()
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "closed_sandbox.py").write_text(CLOSED_SANDBOX)
    monkeypatch.syspath_prepend(tmp_path)
    verdict = list(check_machine(read_settings(), "closed_sandbox:SANDBOX"))[-1]
    assert verdict.detail == "the sandbox closed_sandbox:SANDBOX does not work here"
    assert verdict.hint == "confined works here: --sandbox confined"


def test_check_of_a_sandbox_that_does_not_exist_does_not_speak_of_all_sandboxes(no_programs: None) -> None:
    verdict = list(check_machine(read_settings(), "no-such-sandbox"))[-1]
    assert verdict.detail.startswith("the sandbox no-such-sandbox does not work here")


def test_a_record_of_an_earlier_version_is_full_or_none() -> None:
    earlier = (
        '{"sandbox": "bubblewrap", "isolates": true, "promises": [{"name": "a", "holds": true, "mend": ""}]}'
    )
    assert Isolation.model_validate_json(earlier).level == "full"
    assert Isolation.model_validate_json('{"sandbox": "local", "isolates": false}').level == "none"


def test_a_resumed_run_keeps_the_sandbox_that_was_chosen_for_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A better one may work by now, but the agent knows its workspace by the path of the first."""
    require_confined()
    for name in ("RUNS", "CACHE"):
        monkeypatch.setenv(f"AGENT2RL_{name}", str(tmp_path / name))
    spec = RunSpec(
        task="gsm8k-mini",
        agent="nop",
        model="abacus",
        engine="scripted",
        sandbox="auto",
        budget=Budget(wall_seconds=1),
    )
    earlier = CONFINED.model_copy(
        update={"reason": "bubblewrap: it was missing", "remedy": "To get bubblewrap: install it"}
    )
    with Recorder.create(tmp_path / "RUNS", spec, lambda _: None) as recorder:
        recorder.record_entry("isolation", **earlier.model_dump(mode="json"))
    with Recorder.open(recorder.paths, lambda _: None, RunLock(recorder.paths.lock)) as resumed:
        _, isolation = prepare_sandbox(spec, read_settings(), resumed)
    assert (isolation.sandbox, isolation.reason, isolation.remedy) == (
        earlier.sandbox,
        earlier.reason,
        earlier.remedy,
    )
