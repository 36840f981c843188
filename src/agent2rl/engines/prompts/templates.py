"""From chats to the text that a model reads.

A chat template is a program that the agent may have written. It is rendered in Jinja's sandbox, in a process
of its own that is killed when it takes too long: a loop inside one long operation of Jinja cannot be broken
off in any other way, and a process can also be held to an amount of memory. The process serves many calls.

A model without a template gets plain text, to be continued (`core.engine.plain`).
"""

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from agent2rl.core.engine import Chat, render_plain_text
from agent2rl.core.errors import GradingError

RENDER_SECONDS = 5.0
RENDER_SECONDS_PER_CHAT = 0.01
START_SECONDS = 60.0
"""Python and Jinja start within it on the busiest of machines."""
WORKER = Path(__file__).with_name("template_worker.py")
MEND = "Keep the base model's template, or try yours on a few chats with tokenizer.apply_chat_template."


class TemplateRenderer:
    """Renders chats with one template, or plainly where there is none."""

    def __init__(self, template: str | None, tokens: dict[str, str]) -> None:
        self.template = template
        self.tokens = tokens
        self._process: subprocess.Popen[bytes] | None = None

    def render(self, chats: Sequence[Chat]) -> list[str]:
        if self.template is None:
            return [render_plain_text(chat) for chat in chats]
        # The first call alone waits for the process, so that its start does not count as the template's time.
        if self._process is None:
            self._start_worker()
            self._request_texts([], START_SECONDS)
        question = [[{"role": said.role, "content": said.content} for said in chat] for chat in chats]
        return self._request_texts(question, RENDER_SECONDS + RENDER_SECONDS_PER_CHAT * len(chats))

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def _start_worker(self) -> None:
        # Isolated from the user's variables and directories; the environment holds nothing it needs.
        argv = [sys.executable, "-I", str(WORKER)]
        self._process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={})
        self._send_line({"template": self.template, "tokens": self.tokens})

    def _request_texts(self, chats: list[list[dict[str, str]]], seconds: float) -> list[str]:
        try:
            self._send_line(chats)
            answer = json.loads(self._read_line(time.monotonic() + seconds))
        except (OSError, ValueError):
            self.close()
            raise GradingError("The chat template needs too much memory or crashes.", MEND) from None
        if "error" in answer:
            raise GradingError(f"The chat template fails with {answer['error']}.", MEND)
        texts: list[str] = answer["texts"]
        return texts

    def _send_line(self, value: object) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(value).encode() + b"\n")
        self._process.stdin.flush()

    def _read_line(self, deadline: float) -> bytes:
        assert self._process is not None
        assert self._process.stdout is not None
        stdout = self._process.stdout.fileno()
        pieces: list[bytes] = []
        while not pieces or not pieces[-1].endswith(b"\n"):
            ready, _, _ = select.select([stdout], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                self.close()
                raise GradingError("The chat template takes too long.", MEND)
            piece = os.read(stdout, 1 << 20)
            if not piece:
                raise OSError("it ended")
            pieces.append(piece)
        return b"".join(pieces)
