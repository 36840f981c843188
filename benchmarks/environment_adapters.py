"""What the adapters of a world cost on top of its engine: steps a second of ALFWorld, bare and by adapter.

    python -m benchmarks.environment_adapters DATA      a run's data directory, with world.json and games/

The same commands are played each time: those that each game admits, in turn. The bare engine is
`AlfworldEpisode.step`; `environment` is what the grader steps. Served steps go through a unix socket and a
WebSocket, one client or many at once.
"""

import asyncio
import json
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from websockets.asyncio.client import connect

from agent2rl.core.environment import World
from agent2rl.core.task import Example
from agent2rl.environments.adapters import EpisodeConversation, Gym, Gyms, open_world, rollout
from agent2rl.environments.adapters.client import ServedWorld
from agent2rl.environments.adapters.openenv import BODY_BYTES, application
from agent2rl.environments.alfworld import AlfworldEpisode, AlfworldGame
from agent2rl.grading.server import serve_on_socket
from agent2rl.net.socket_keys import connect_to_socket

STEPS, CHUNK, REPEATS = 50, 10, 40
Script = list[str]


def draw_scripts(data: Path, world: World) -> tuple[list[AlfworldGame], list[Script]]:
    """Commands of a game that the engine knows, and that do not win it."""
    games, found = [], []
    for example in world.games:
        game = AlfworldGame.load(data / "games" / example.id / "game.tw-pddl")
        play, script = AlfworldEpisode(game), []
        for number in range(STEPS):
            before = play.commands
            script.append(before[number % len(before)])
            play.step(script[-1])
            if play.won:
                break
        if not play.won:
            games.append(game)
            found.append(script)
    return games, found


def play_engine(games: list[AlfworldGame], scripts: list[Script]) -> None:
    for game, script in zip(games, scripts, strict=True):
        play = AlfworldEpisode(game)
        for command in script:
            play.step(command)


def play_environment(world: World, games: list[AlfworldGame], scripts: list[Script]) -> None:
    place, named = world.environment(), {example.id: example for example in world.games}
    for game, script in zip(games, scripts, strict=True):
        place.reset(named[game.id])
        for command in script:
            place.step(command)


def play_gym(world: World, games: list[AlfworldGame], scripts: list[Script]) -> None:
    one = Gym(world)
    for game, script in zip(games, scripts, strict=True):
        one.reset(options={"game": game.id})
        for command in script:
            one.step(command)


def play_gyms(world: World, games: list[AlfworldGame], scripts: list[Script]) -> None:
    many = Gyms(len(games), world)
    many.reset(options={"games": [game.id for game in games]})
    for commands in zip(*scripts, strict=True):
        many.step(commands)


def play_rollout(world: World, games: list[AlfworldGame], scripts: list[Script]) -> None:
    def policy(conversations: Sequence[EpisodeConversation]) -> list[str]:
        return [scripts[each.number][len(each.turns) - 1] for each in conversations]

    rollout(policy, len(games), world=world, games=[game.id for game in games])


def time_served(world: World, games: list[AlfworldGame], scripts: list[Script], clients: int | None) -> float:
    """Seconds, with the clients in a process of their own; None is one `ServedWorld`."""
    app = application(world, "alfworld")
    plays = [(game.id, script) for game, script in zip(games, scripts, strict=True)]
    with (
        serve_on_socket(app, connections=512, message_bytes=BODY_BYTES) as socket,
        ProcessPoolExecutor(1, mp_context=get_context("spawn")) as other,
    ):
        other.submit(run_client, str(socket), plays, clients).result()
        return min(other.submit(run_client, str(socket), plays, clients).result() for _ in range(REPEATS))


def run_client(socket: str, plays: list[tuple[str, Script]], clients: int | None) -> float:
    if clients is None:
        return time_served_world(socket, plays)

    async def play(number: int) -> None:
        link = connect_to_socket(Path(socket))
        async with connect("ws://world/ws", sock=link, proxy=None, compression=None) as line:
            for game, script in plays[number::clients]:
                await line.send(json.dumps({"type": "reset", "data": {"game": game}}))
                await line.recv()
                for command in script:
                    await line.send(json.dumps({"type": "step", "data": {"text": command}}))
                    await line.recv()

    async def all_of_them() -> None:
        await asyncio.gather(*(play(number) for number in range(clients)))

    began = time.perf_counter()
    asyncio.run(all_of_them())
    return time.perf_counter() - began


def time_served_world(socket: str, plays: list[tuple[str, Script]]) -> float:
    place = ServedWorld(f"unix:{socket}")
    began = time.perf_counter()
    for game, script in plays:
        place.reset(Example(game, "", ""))
        for command in script:
            place.step(command)
    seconds = time.perf_counter() - began
    place.close()
    return seconds


def main() -> None:
    data = Path(sys.argv[1])
    world = open_world(data)
    games, scripts = draw_scripts(data, world)
    steps = sum(map(len, scripts))
    adapters: dict[str, Callable[[list[AlfworldGame], list[Script]], None]] = {
        "bare engine": play_engine,
        "environment": lambda batch, batch_scripts: play_environment(world, batch, batch_scripts),
        "Gym": lambda batch, batch_scripts: play_gym(world, batch, batch_scripts),
        f"Gyms({CHUNK})": lambda batch, batch_scripts: play_gyms(world, batch, batch_scripts),
        f"rollout, {CHUNK} live": lambda batch, batch_scripts: play_rollout(world, batch, batch_scripts),
    }
    best = dict.fromkeys(adapters, 0.0)
    for start in range(0, len(games), CHUNK):
        batch, batch_scripts = games[start : start + CHUNK], scripts[start : start + CHUNK]
        for name, seconds in time_fastest(adapters, batch, batch_scripts).items():
            best[name] += seconds
    print(f"{len(games)} games, {steps} steps; of {CHUNK} games at a time, the best of {REPEATS} rounds")
    for name, seconds in best.items():
        more = seconds / best["bare engine"] - 1
        print(
            f"{name:24} {steps / seconds:9,.0f} steps/s {1e6 * seconds / steps:8.1f} µs a step {more:+7.0%}"
        )
    for clients in (None, 1, 16):
        rate = steps / time_served(world, games, scripts, clients)
        name = "ServedWorld" if clients is None else f"served, clients: {clients}"
        print(f"{name:24} {rate:9,.0f} steps/s {1e6 / rate:8.1f} µs a step")


def time_fastest(
    adapters: dict[str, Callable[[list[AlfworldGame], list[Script]], None]],
    games: list[AlfworldGame],
    scripts: list[Script],
) -> dict[str, float]:
    """In turn, so that whatever else the machine does befalls all alike."""
    found = dict.fromkeys(adapters, float("inf"))
    for _ in range(REPEATS):
        for name, play in adapters.items():
            began = time.process_time()
            play(games, scripts)
            found[name] = min(found[name], time.process_time() - began)
    return found


if __name__ == "__main__":
    main()
