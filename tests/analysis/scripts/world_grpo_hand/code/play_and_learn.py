import os
import random

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from agent2rl.environments.adapters import Gym, open_world

MAX_TURNS = 20
GROUP = 4


class Player:
    def __init__(self, path):
        self.tok = AutoTokenizer.from_pretrained(path)
        self.model = AutoModelForCausalLM.from_pretrained(path).cuda()
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=1e-6)

    def act(self, history):
        prompt = self.tok.apply_chat_template(history, add_generation_prompt=True, return_tensors="pt").cuda()
        with torch.no_grad():
            out = self.model.generate(prompt, max_new_tokens=24, do_sample=True, temperature=1.0)
        reply = out[0, prompt.shape[1] :]
        return prompt[0], reply, self.tok.decode(reply, skip_special_tokens=True)

    def logprob(self, prompt, reply):
        ids = torch.cat([prompt, reply]).unsqueeze(0)
        logits = self.model(ids).logits[0, prompt.numel() - 1 : -1]
        return torch.log_softmax(logits.float(), -1).gather(1, reply.unsqueeze(1)).sum()


def episode(player, gym, game):
    seen, info = gym.reset(options={"game": game})
    history, turns, total = [{"role": "user", "content": seen}], [], 0.0
    for _ in range(MAX_TURNS):
        prompt, reply, text = player.act(history)
        turns.append((prompt, reply))
        seen, reward, done, cut, info = gym.step(text.strip().split("\n")[0])
        total = max(total, reward)
        history += [{"role": "assistant", "content": text}, {"role": "user", "content": seen}]
        if done or cut:
            break
    return turns, total


def main():
    world = open_world()
    gym = Gym(world)
    player = Player(os.environ["MODEL_PATH"])
    games = [g.id for g in world.games]
    for step in range(100):
        game = random.choice(games)
        played = [episode(player, gym, game) for _ in range(GROUP)]
        returns = torch.tensor([r for _, r in played])
        if returns.max() == returns.min():
            continue
        advantages = returns - returns.mean()
        player.opt.zero_grad()
        for (turns, _), advantage in zip(played, advantages):
            for prompt, reply in turns:
                loss = -advantage * player.logprob(prompt, reply) / GROUP
                loss.backward()
        player.opt.step()
        print(step, float(returns.mean()))
        if step % 25 == 24:
            player.model.save_pretrained(f"output/play-{step}")
            player.tok.save_pretrained(f"output/play-{step}")


if __name__ == "__main__":
    main()
