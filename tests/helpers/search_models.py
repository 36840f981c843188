"""Models as functions that search, and judges that read what they are told."""

import json
import re
from pathlib import Path
from typing import Any

from agent2rl.core.engine import Chat

CAPITALS = {"Arlen": "Tolm", "Bexa": "Ruvo", "Corin": "Sel", "Dorva": "Mirk", "Elm": "Parsa", "Fenn": "Ost"}
"""Lands of nowhere, and their capitals."""


def open_research_model(_: Path) -> Any:
    """Searches, opens the first page and answers with its last word; thoughts are on lines of their own."""

    def answer(chat: Chat) -> str:
        asked = len(chat) // 2
        seen = chat[-1].content
        if asked == 0:
            land = seen.rpartition(" ")[2].strip("?")
            return f"Thought: I look it up.\nA land.\nAction 1: search[capital of {land}]\nObservation: no"
        if asked == 1:
            return "Thought: I read it.\n\nAction: open[1]"
        return f"Thought: There it is.\nAction: answer[{seen.rpartition(' ')[2].strip('.')}]"

    return answer


def write_search_data(folder: Path) -> None:
    """Pages about the lands, and questions on them in the official format."""
    (folder / "pages").mkdir(parents=True)
    for land, town in CAPITALS.items():
        (folder / "pages" / f"{land}.txt").write_text(f"{land} is a land. Its capital is {town}.")
    rows = [
        f"What is the capital of {land}?,Geography,{town},Single Answer" for land, town in CAPITALS.items()
    ]
    header = "problem,problem_category,answer,answer_type"
    (folder / "DSQA-full.csv").write_text("\n".join([header, *rows]) + "\n")


def parse_judge_prompt(chat: Chat) -> tuple[list[list[str]], str]:
    """What a judge is given: the right items, and the answer between its marks."""
    text = chat[-1].content
    found = re.search(r"Right items: (\[.*\])\n\nAnswer, between the marks (\w+):\n\2\n(.*)\n\2\Z", text)
    assert found, text
    return json.loads(found[1]), json.loads(found[3])


def judge_by_names(chat: Chat) -> str:
    """Marks by exact names, and by nothing that the answer says."""
    items, answer = parse_judge_prompt(chat)
    said = {part.strip() for part in answer.split(";")}
    there = [bool(said & set(names)) for names in items]
    excess = sorted(said - {name for names in items for name in names})
    return "```json\n" + json.dumps({"items": there, "excess": excess}) + "\n```"


def judge_with_gaps(chat: Chat) -> str:
    """The same judge, which says nothing that can be read to one answer."""
    return "?" if "hush" in parse_judge_prompt(chat)[1] else judge_by_names(chat)
