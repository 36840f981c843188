"""Scripts of the scripted driver LLM: what is a script, and what is said of one that is none."""

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent2rl.core.errors import UserError
from agent2rl.fake_llm.script_file import load_script, parse_script
from tests.helpers.run_launcher import RunLauncher

WRONG = {
    "": "step: Field required",
    "step = []": "step: Tuple should have at least 1 item",
    "[[step]]\nsay = x\n": "is not TOML: .*line 2",
    "mood = 'good'\n[[step]]\nend = 'x'": "mood: there is no such key",
    "[[step]]\nend = 'x'\n[[step]]\nsays = 'x'": "step 2: says: there is no such key",
    "[[step]]\nlabel = 'a'": "step 1: the step is empty: give it say, shell",
    "[[step]]\nsay = ''": "step 1: say: String should have at least 1 character",
    "[[step]]\nthink = 'x'\ngoto = 'a'": "step 1: `think` needs say, end or a call",
    "[[step]]\nsay = 'x'\nend = 'y'": "step 1: `end` is the whole answer",
    "[[step]]\nshell = 'x'\ntool = 'y'": "step 1: shell and tool are two calls: put them into `calls`",
    "[[step]]\nsay = 'x'\ncalls = [{}]": "step 1: each of `calls` needs a shell",
    "[[step]]\ncalls = [{ shell = 'x', timeout = -1 }]": "step 1: calls.0.timeout: .*greater than 0",
    "[[step]]\nsay = 'x'\narguments = { a = 1 }": "step 1: `arguments` needs a `tool`",
    "[[step]]\nsay = 'x'\ntimeout = 1": "step 1: `timeout` needs a shell command",
    '[[step]]\nshell = "a\\u0000b"': "step 1: a shell command cannot contain a zero byte",
    "[[step]]\nfail = 200": "step 1: fail.status",
    "[[step]]\nfail = 'tired'": "step 1: fail.status.*overloaded",
    "[[step]]\nfail = { status = 429, times = 0 }": "step 1: fail.times",
    "[[step]]\nfail = { status = 429, midway = true }": "step 1: an interrupted answer needs a text",
    "[[step]]\nfail = 500\ncut = 1": "step 1: an interrupted answer needs a text",
    "[[step]]\nend = 'x'\nwhen = '('": "step 1: when.result: .*regular expression",
    "[[step]]\nend = 'x'\nelse = 'a'": "step 1: `else` needs a `when`",
    "[[step]]\nfail = 500\nuntil = 'x'": "step 1: `until` needs an answer to repeat",
    "[[step]]\nend = 'x'\nwhen = 'x'\nelse = 'a'": "step 1: there is no step 'a'; labels: none",
    "[[step]]\nlabel = 'a'\nend = 'x'\n[[step]]\ngoto = 'b'": "step 2: there is no step 'b'; labels: a",
    "[[step]]\nlabel = 'a'\nend = 'x'\n[[step]]\nlabel = 'a'\nend = 'x'": "two steps are labelled 'a'",
    "[[step]]\nshell = 'echo {{loss}}'": "step 1: nothing captures 'loss'",
    "[[step]]\ntool = 'x'\narguments = { a = [{ b = '{{c}}' }] }": "step 1: nothing captures 'c'",
    "[[step]]\nend = 'x'\nusage = { input = 1, cached = 2 }": "step 1: usage: `input` includes `cached`",
    "[[step]]\nend = 'x'\nusage = { output = 1, reasoning = 2 }": "step 1: usage: `output` includes",
    "[[step]]\nend = 'x'\nusage = { output = -1 }": "step 1: usage: tokens must not be negative",
}


@pytest.mark.parametrize("text", WRONG)
def test_what_is_wrong_with_a_script_is_said_by_file_step_and_field(text: str) -> None:
    with pytest.raises(UserError, match=f"^my.toml:? {WRONG[text]}"):
        parse_script(text, "my.toml")


@given(st.text() | st.text().map(lambda text: f"[[step]]\nend = '''{text}'''"))
def test_any_text_is_a_script_or_a_clear_error(text: str) -> None:
    with suppress(UserError):
        assert parse_script(text).step


def test_a_script_that_is_not_there_names_those_that_are(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no script 'nope'.*failing, nothing, train-and-submit"):
        load_script("nope")
    (tmp_path / "binary.toml").write_bytes(b"\xff")
    with pytest.raises(UserError, match="cannot be read"):
        load_script(str(tmp_path / "binary.toml"))


def test_the_command_lists_and_checks_scripts(launcher: RunLauncher) -> None:
    (launcher.home / "bad.toml").write_text("[[step]]\nsay = 1\n")
    listed = launcher.cli("driver", "scripted", "--list")
    assert [line.split()[0] for line in listed.stdout.splitlines()] == [
        "failing",
        "nothing",
        "train-and-submit",
    ]
    good = launcher.cli("driver", "scripted", "--check", "train-and-submit")
    assert (good.returncode, good.stdout) == (0, "train-and-submit: 8 steps, valid.\n")
    bad = launcher.cli("driver", "scripted", "--check", "bad.toml")
    assert (bad.returncode, bad.stdout) == (2, "")
    assert bad.stderr.startswith("error: bad.toml: step 1: say: ")
