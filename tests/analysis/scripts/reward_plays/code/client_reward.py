import os

from datasets import Dataset
from openenv.core.generic_client import GenericEnvClient
from trl import GRPOConfig, GRPOTrainer


def plan_reward(completions, seed, **kwargs):
    """Each completion is a plan, one action a line, that is played in the world."""
    scores = []
    for text, start in zip(completions, seed):
        with GenericEnvClient(base_url=os.environ["ENVIRONMENT_URL"]).sync() as world:
            world.reset(seed=start)
            best = 0.0
            for line in text.splitlines()[:20]:
                seen = world.step({"text": line})
                best = max(best, seen.reward or 0.0)
                if seen.done:
                    break
        scores.append(best)
    return scores


prompts = Dataset.from_list([{"prompt": "Write a plan.", "seed": n} for n in range(2000)])
config = GRPOConfig(output_dir="output/plans", num_generations=8, learning_rate=1e-6)
trainer = GRPOTrainer(model=os.environ["MODEL_PATH"], reward_funcs=[plan_reward], args=config, train_dataset=prompts)
trainer.train()
trainer.save_model("output/plans")
