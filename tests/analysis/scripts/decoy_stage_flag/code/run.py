import argparse
import json

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import DPOConfig, DPOTrainer, GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer
from datasets import Dataset, load_dataset


def reward(completions, answer, **_):
    return [float(a.split("####")[-1].strip() in c) for c, a in zip(completions, answer)]


def do_sft(args):
    ds = load_dataset("json", data_files="data/train.jsonl", split="train")
    ds = ds.map(lambda r: {"prompt": r["question"], "completion": r["answer"]})
    cfg = SFTConfig(output_dir=args.out, learning_rate=args.lr, num_train_epochs=args.epochs)
    t = SFTTrainer(model=args.model, args=cfg, train_dataset=ds)
    t.train()
    t.save_model(args.out)


def do_grpo(args):
    ds = load_dataset("json", data_files="data/train.jsonl", split="train").map(lambda r: {"prompt": r["question"]})
    cfg = GRPOConfig(output_dir=args.out, learning_rate=args.lr, num_generations=8)
    t = GRPOTrainer(model=args.model, reward_funcs=reward, args=cfg, train_dataset=ds)
    t.train()
    t.save_model(args.out)


def do_dpo(args):
    ds = load_dataset("json", data_files="code/pairs.jsonl", split="train")
    t = DPOTrainer(model=args.model, args=DPOConfig(output_dir=args.out, learning_rate=args.lr), train_dataset=ds)
    t.train()
    t.save_model(args.out)


STAGES = {"sft": do_sft, "grpo": do_grpo, "dpo": do_dpo}

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("stage", choices=list(STAGES))
    parser.add_argument("--model", default="models/base")
    parser.add_argument("--out", default="output/run")
    parser.add_argument("--lr", type=float, default=1e-5)
    parser.add_argument("--epochs", type=int, default=1)
    args = parser.parse_args()
    torch.manual_seed(0)
    STAGES[args.stage](args)
