"""A client that is written for the published grading API works unchanged.

It knows these calls and fields and no others: `/health`, `/time` and `/submit`, and the files `run_meta.json`
and `scores.json`. It takes the best score out of every answer, and an `error` for a failure.
"""

import json

import pytest

from tests.helpers.run_launcher import RunLauncher

CLIENT = """
def ask(path, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(URL + path, data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)

def read(name):
    return json.loads((WORKSPACE / name).read_text())

def grade(path, **more):
    status, answer = ask("/submit", {"model_path": str(path), **more})
    return {"http": status, "best score": answer.get("best", {}).get("score"), **answer}

say(health=ask("/health"), first_time=ask("/time"), first_meta=read("run_meta.json"))
say(first_scores=read("scores.json"))
bad = {
    "no path": ask("/submit", {}),
    "no such gpu": ask("/submit", {"model_path": "output/v1", "gpu": "0,1"}),
    "set_baseline": ask("/set_baseline", {"score": 0}),
}
graded = [
    grade(OUTPUT / "v0"),
    grade(trained("v1", problems=5)),
    grade(trained("v2", problems=200)),
    grade(OUTPUT / "v0"),
]
say(bad=bad, graded=graded, time=ask("/time"), meta=read("run_meta.json"), scores=read("scores.json"))
say(writable=os.access(WORKSPACE / "scores.json", os.W_OK))
"""
ENTRY = (
    "submission_id",
    "timestamp",
    "model_path",
    "score",
    "baseline_score",
    "improvement",
    "elapsed_seconds",
)
CLOCK = ("start_time", "timeout_s", "last_submit_time", "end_time")


def test_a_published_client_asks_submits_and_reads_its_scores(launcher: RunLauncher) -> None:
    run = launcher.run(CLIENT, "--budget", "20m")
    assert run.result.ending == "completed", run.log
    status, health = run.said["health"]
    assert (status, health["status"], health["task"], health["available_gpus"]) == (
        200,
        "ok",
        "gsm8k-mini",
        [],
    )
    assert health["workspace"] == "/workspace"
    assert run.said["first_scores"] == []
    first = run.said["first_time"][1]
    for clock in (first, run.said["first_meta"]):
        assert [type(clock[name]) for name in CLOCK] == [int, int, type(None), type(None)]
        assert clock["timeout_s"] == 1200
    assert (type(first["now"]), type(first["remaining"])) == (int, int)
    assert 0 <= first["remaining"] <= 1200

    bad = run.said["bad"]
    assert [bad[name][0] for name in ("no path", "no such gpu", "set_baseline")] == [400, 400, 404]
    assert "model_path" in bad["no path"][1]["error"]
    assert "0,1" in bad["no such gpu"][1]["error"]
    assert bad["no such gpu"][1]["available_gpus"] == []

    missing, weak, strong, again = run.said["graded"]
    assert [answer["http"] for answer in (missing, weak, strong, again)] == [200] * 4
    assert [answer["submission_id"] for answer in (missing, weak, strong, again)] == [1, 2, 3, 4]
    assert [answer["total_submissions"] for answer in (missing, weak, strong, again)] == [1, 2, 3, 4]
    for failed in (missing, again):
        assert failed["score"] is None
        assert failed["error"] == failed["message"] != ""
    for scored in (weak, strong):
        assert "error" not in scored
        assert isinstance(scored["score"], float)
        assert isinstance(scored["timestamp"], str)
    assert weak["score"] < strong["score"]
    assert [answer["best score"] for answer in (missing, weak, strong, again)] == [
        None,
        weak["score"],
        strong["score"],
        strong["score"],
    ]
    assert strong["best"] == {name: strong[name] for name in ENTRY}

    assert run.said["scores"] == [
        {name: answer[name] for name in (*ENTRY, "error") if name in answer}
        for answer in (missing, weak, strong, again)
    ]
    assert not run.said["writable"]
    clock = run.said["time"][1]
    assert clock["start_time"] <= clock["last_submit_time"] <= clock["now"]
    assert clock["end_time"] is None
    assert {name: run.said["meta"][name] for name in CLOCK} == {name: clock[name] for name in CLOCK}
    left = json.loads((run.paths.workspace / "run_meta.json").read_text())
    assert left["end_time"] >= left["last_submit_time"] == clock["last_submit_time"]


SPOILER = """
place = WORKSPACE / "scores.json"
outside = pathlib.Path("/tmp/outside")
outside.write_text("kept")

def spoil(how):
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place)
    else:
        place.unlink(missing_ok=True)
    how()

def make_folder():
    (place / "deep").mkdir(parents=True)

def lock_folder():
    WORKSPACE.chmod(0o555)

spoilers = [
    lambda: place.symlink_to(outside),
    lambda: place.symlink_to(WORKSPACE / "nowhere"),
    lambda: os.mkfifo(place),
    lambda: place.write_text("[1]"),
    make_folder,
    lock_folder,
]
found = []
for number, how in enumerate(spoilers):
    spoil(how)
    answer = submit(trained(f"v{number}", problems=40 + number))
    scores = json.loads(place.read_text()) if place.is_file() and not place.is_symlink() else None
    found.append([answer["verdict"], scores and len(scores)])
WORKSPACE.chmod(0o755)
say(found=found, outside=outside.read_text(), left=sorted(path.name for path in WORKSPACE.glob(".scores*")))
"""


@pytest.mark.thorough
def test_an_agent_that_spoils_its_scores_file_changes_no_verdict(launcher: RunLauncher) -> None:
    run = launcher.run(SPOILER, "--budget", "20m")
    assert run.result.ending == "completed", run.log
    assert [verdict for verdict, _ in run.said["found"]] == ["scored"] * 6
    assert [listed for _, listed in run.said["found"][:5]] == [1, 2, 3, 4, None]
    assert run.said["outside"] == "kept"
    assert run.said["left"] == []
    assert run.result.submissions == 6
