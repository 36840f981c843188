"""Adapters that let training programs play a world's training games.

    open_world       open the training games of the current run
    count_steps      the same world with every step counted, for programs with their own game loop
    report_episodes  report the episodes of programs that play the games in other ways
    Gym, Gyms        reset and step, for one episode or for many at once
    rollout          play many episodes with a policy, in batches
    play_expert_episodes   play many episodes with the world's expert (formerly `demonstrations`)

`adapters.trl` is for TRL's GRPOTrainer. `adapters.openenv` serves a world over HTTP and WebSocket.
"""

from agent2rl.environments.adapters.episodes import EpisodeTrace, StepsUsedUp, open_world
from agent2rl.environments.adapters.gym import Gym, Gyms
from agent2rl.environments.adapters.rollout_reports import (
    count_steps,
    open_training_environment,
    report_episodes,
)
from agent2rl.environments.adapters.rollouts import (
    EpisodeConversation,
    PlayedEpisode,
    Policy,
    demonstrations,
    play_expert_episodes,
    rollout,
)

__all__ = [
    "EpisodeConversation",
    "EpisodeTrace",
    "Gym",
    "Gyms",
    "PlayedEpisode",
    "Policy",
    "StepsUsedUp",
    "count_steps",
    "demonstrations",
    "open_training_environment",
    "open_world",
    "play_expert_episodes",
    "report_episodes",
    "rollout",
]
