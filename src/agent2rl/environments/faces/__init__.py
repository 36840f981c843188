"""A world's training games, as training programs want them.

    open_world       the games of the run that a program is part of
    counted          the same, with every step counted, for programs that play by themselves
    Gym, Gyms        reset and step, for one episode and for many at once
    rollout          many episodes with a policy, in batches
    demonstrations   the same with the world's expert

`faces.trl` is for TRL's GRPOTrainer, `faces.openenv` serves a world to everything else.
"""

from agent2rl.environments.faces.claims import counted
from agent2rl.environments.faces.gym import Gym, Gyms
from agent2rl.environments.faces.opening import open_world
from agent2rl.environments.faces.rollouts import Conversation, Episode, Policy, demonstrations, rollout
from agent2rl.environments.faces.seat import StepsUsedUp

__all__ = [
    "Conversation",
    "Episode",
    "Gym",
    "Gyms",
    "Policy",
    "StepsUsedUp",
    "counted",
    "demonstrations",
    "open_world",
    "rollout",
]
