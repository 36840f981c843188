"""An agent that notes what it is told and asks its driver three times; told to go on, it says it cannot."""

from dataclasses import dataclass

from agent2rl.core.agent import Agent, Brief
from agent2rl.core.sandbox import Command

AGENT_PROGRAM = """
import json, os, pathlib, sys, time, urllib.request

notes = pathlib.Path(os.environ["WORKSPACE"], "notes")
notes.mkdir(exist_ok=True)
told = {"prompt": sys.stdin.read(), "goes_on": os.environ["GOES_ON"], "resumed": os.environ.get("RESUMED")}
(notes / f"{time.time_ns()}.json").write_text(json.dumps(told))
if told["goes_on"] == "True":
    sys.exit("no session to go on from")
body = {"model": os.environ["LLM_MODEL"], "messages": [{"role": "user", "content": "Well?"}]}
for _ in range(3):
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    urllib.request.urlopen(request).read()
time.sleep(60)
"""


@dataclass(frozen=True)
class DriverCallingAgent:
    secrets: tuple[str, ...] = ()

    def command(self, brief: Brief) -> Command:
        environment = {**brief.environment, "GOES_ON": str(brief.resumed)}
        return Command(("python", "-c", AGENT_PROGRAM), environment, input=brief.prompt)


AGENT: Agent = DriverCallingAgent()
