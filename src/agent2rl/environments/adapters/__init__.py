"""A world's training games, as training programs want them.

    open_world       the games of the run that a program is part of
    counted          the same, with every step counted, for programs that play by themselves
    Gym, Gyms        reset and step, for one episode and for many at once
    rollout          many episodes with a policy, in batches
    demonstrations   the same with the world's expert

`faces.trl` is for TRL's GRPOTrainer, `faces.openenv` serves a world to everything else.
"""

from agent2rl.environments.adapters.episodes import StepsUsedUp, open_world
from agent2rl.environments.adapters.gym import Gym, Gyms
from agent2rl.environments.adapters.rollout_reports import count_steps
from agent2rl.environments.adapters.rollouts import (
    EpisodeConversation,
    PlayedEpisode,
    Policy,
    demonstrations,
    rollout,
)

__all__ = [
    "EpisodeConversation",
    "Gym",
    "Gyms",
    "PlayedEpisode",
    "Policy",
    "StepsUsedUp",
    "count_steps",
    "demonstrations",
    "open_world",
    "rollout",
]
