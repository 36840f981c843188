"""An event loop in a thread of its own: many requests at once behind a synchronous call.

The caller only waits, so Ctrl-C reaches it at once; what was under way is then cancelled, and the thread ends
with the process. It works inside another event loop too, which `asyncio.run` would not.
"""

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

ResultT = TypeVar("ResultT")


class BackgroundEventLoop:
    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="openai-api", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, ResultT]) -> ResultT:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def close(self, last: Coroutine[Any, Any, None]) -> None:
        """Cancel what is under way, do one last thing, and end."""
        self.run(self._cancel_tasks_and_finish(last))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _cancel_tasks_and_finish(self, last: Coroutine[Any, Any, None]) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await last
