from trl import GRPOConfig, GRPOTrainer
from datasets import load_dataset


def score(completions, answer, **_):
    return [float(c.strip().endswith(a.split()[-1])) for c, a in zip(completions, answer)]


def learn(cfg):
    ds = load_dataset("json", data_files="data/train.jsonl", split="train").rename_column("question", "prompt")
    args = GRPOConfig(output_dir=cfg.out, learning_rate=cfg.optim.lr, max_steps=cfg.optim.steps)
    t = GRPOTrainer(model=cfg.model.path, reward_funcs=[score], train_dataset=ds, args=args)
    t.train()
    t.save_model(cfg.out)
