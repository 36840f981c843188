from agent2rl.notebook import compare as compare
from agent2rl.notebook import load_runs as load_runs

__version__: str
