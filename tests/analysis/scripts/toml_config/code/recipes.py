from datasets import load_dataset
from trl import ORPOConfig, ORPOTrainer, SFTConfig, SFTTrainer


def imitate(cfg):
    t = SFTTrainer(cfg["run"]["model"], SFTConfig(cfg["run"]["out"]), train_dataset=load_dataset("json", data_files=cfg["data"]["file"])["train"])
    t.train()


def prefer(cfg):
    args = ORPOConfig(output_dir=cfg["run"]["out"], beta=cfg["run"]["beta"], learning_rate=8e-6)
    t = ORPOTrainer(model=cfg["run"]["model"], args=args, train_dataset=load_dataset("json", data_files=cfg["data"]["file"])["train"])
    t.train()
    t.save_model()
