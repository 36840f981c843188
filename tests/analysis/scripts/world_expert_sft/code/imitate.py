import os
from pathlib import Path

from agent2rl.environments.adapters import demonstrations, open_world
from agent2rl.training import models, prompts
from agent2rl.training.progress import Progress
from agent2rl.training.sft import SftSettings, sft

PREFACE = "You are in a text world. Answer with one action."


def pairs(tokenizer, count):
    made = []
    for episode in demonstrations(count, world=open_world()):
        if not episode.won:
            continue
        chat = [{"role": "user", "content": f"{PREFACE}\n\n{episode.turns[0].observation}"}]
        for turn in episode.turns[1:]:
            made.append((tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True), turn.action))
            chat.append({"role": "assistant", "content": turn.action})
            chat.append({"role": "user", "content": turn.observation})
    return made


def main():
    model, tokenizer = models.load(Path(os.environ["MODEL_PATH"]))
    shown = pairs(tokenizer, 200)
    print(len(shown), "turns shown")
    sft(model, tokenizer, shown, SftSettings(learning_rate=1e-4, epochs=2, batch_size=8), Progress("sft"))
    models.save(model, tokenizer, Path(os.environ["OUTPUT_DIR"]) / "imitation")


if __name__ == "__main__":
    main()
