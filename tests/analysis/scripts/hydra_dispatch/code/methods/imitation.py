from trl import SFTConfig, SFTTrainer
from datasets import load_dataset


def learn(cfg):
    ds = load_dataset("json", data_files="data/train.jsonl", split="train")
    t = SFTTrainer(model=cfg.model.path, train_dataset=ds, args=SFTConfig(output_dir=cfg.out, learning_rate=cfg.optim.lr))
    t.train()
    t.save_model(cfg.out)
