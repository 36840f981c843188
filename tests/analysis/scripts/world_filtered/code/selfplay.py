"""Play with the present model, keep the games that were won, imitate them; twice."""
import os
from pathlib import Path

from agent2rl.environments.adapters import open_world, rollout
from agent2rl.training import models
from agent2rl.training.progress import Progress
from agent2rl.training.sampling import SampleSettings, sample
from agent2rl.training.sft import SftSettings, sft

OUT = Path(os.environ["OUTPUT_DIR"])


def player(model, tokenizer):
    def policy(conversations):
        asked = [tokenizer.apply_chat_template(c.messages(), tokenize=False, add_generation_prompt=True) for c in conversations]
        return [group[0].text.splitlines()[0] for group in sample(model, tokenizer, asked, SampleSettings(max_tokens=30), 1)]

    return policy


def turns(episode, tokenizer):
    history = []
    for before, after in zip(episode.turns, episode.turns[1:]):
        history.append({"role": "user", "content": before.observation})
        yield tokenizer.apply_chat_template(history, tokenize=False, add_generation_prompt=True), after.action
        history.append({"role": "assistant", "content": after.action})


def main():
    world = open_world()
    model, tokenizer = models.load(Path(os.environ["MODEL_PATH"]))
    for generation in (1, 2):
        episodes = rollout(player(model, tokenizer), 256, world=world, seed=generation)
        won = [e for e in episodes if e.won]
        print(f"generation {generation}: {len(won)}/{len(episodes)} won")
        if not won:
            return
        lesson = [pair for episode in won for pair in turns(episode, tokenizer)]
        sft(model, tokenizer, lesson, SftSettings(epochs=1, learning_rate=5e-5), Progress("won"))
        models.save(model, tokenizer, OUT / f"won-{generation}")


if __name__ == "__main__":
    main()
