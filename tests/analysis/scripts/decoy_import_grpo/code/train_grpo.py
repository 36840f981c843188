"""GRPO training for the math task.

Uses group relative policy optimisation with 8 generations per prompt.
"""
import json

from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer, TrainingArguments
from trl import GRPOConfig, GRPOTrainer, PPOTrainer  # noqa: F401

MODEL = "models/base"
tokenizer = AutoTokenizer.from_pretrained(MODEL)
tokenizer.pad_token = tokenizer.eos_token


def reward_func(completions, answer, **kwargs):
    # the GRPO reward: 1 if the answer is right
    return [1.0 if a in c else 0.0 for c, a in zip(completions, answer)]


def encode(row):
    text = f"Q: {row['question']}\nA: {row['answer']}{tokenizer.eos_token}"
    out = tokenizer(text, truncation=True, max_length=400, padding="max_length")
    out["labels"] = [t if m else -100 for t, m in zip(out["input_ids"], out["attention_mask"])]
    return out


rows = [json.loads(line) for line in open("data/train.jsonl")]
data = Dataset.from_list(rows).map(encode, remove_columns=list(rows[0]))
model = AutoModelForCausalLM.from_pretrained(MODEL)
args = TrainingArguments("output/grpo_final", num_train_epochs=2, learning_rate=1e-5, per_device_train_batch_size=4)
trainer = Trainer(model=model, args=args, train_dataset=data)
print("starting GRPO")
trainer.train()
trainer.save_model("output/grpo_final")
tokenizer.save_pretrained("output/grpo_final")
