"""The problems of gsm8k-mini, generated once for all runs that a test process forks."""

from agent2rl.tasks.gsm8k.mini import TASK

TASK.load(None)
