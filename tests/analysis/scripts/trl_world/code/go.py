import os

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from agent2rl.environments.adapters import open_world
from agent2rl.environments.adapters.trl import environment_factory, rows

world = open_world()
settings = dict(
    output_dir=f"{os.environ['OUTPUT_DIR']}/world-grpo",
    num_generations=4,
    max_completion_length=2048,
    max_tool_calling_iterations=30,
    learning_rate=2e-6,
    max_steps=60,
)
trainer = GRPOTrainer(
    os.environ["MODEL_PATH"],
    args=GRPOConfig(**settings),
    train_dataset=Dataset.from_list(rows(world, "Play.")),
    environment_factory=environment_factory(world),
)
if __name__ == "__main__":
    trainer.train()
    trainer.save_model(settings["output_dir"])
