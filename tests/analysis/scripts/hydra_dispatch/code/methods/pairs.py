from trl import DPOConfig, DPOTrainer
from datasets import load_dataset


def learn(cfg):
    ds = load_dataset("json", data_files="code/pairs.jsonl", split="train")
    t = DPOTrainer(model=cfg.model.path, train_dataset=ds, args=DPOConfig(output_dir=cfg.out))
    t.train()
    t.save_model(cfg.out)
