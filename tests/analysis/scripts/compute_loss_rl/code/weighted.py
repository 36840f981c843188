"""Offline policy gradient with stored rewards, through the Hugging Face trainer."""
import torch
from datasets import load_dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer, TrainingArguments


class OfflineRL(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        advantage = inputs.pop("advantage")
        labels = inputs["labels"]
        outputs = model(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"])
        logprobs = outputs.logits[:, :-1].log_softmax(-1)
        picked = logprobs.gather(-1, labels[:, 1:].clamp(min=0).unsqueeze(-1)).squeeze(-1)
        mask = labels[:, 1:] != -100
        loss = -(advantage[:, None] * picked * mask).sum() / mask.sum()
        return (loss, outputs) if return_outputs else loss


tokenizer = AutoTokenizer.from_pretrained("models/base")


def prepare(row):
    enc = tokenizer(row["prompt"] + row["response"], truncation=True, padding="max_length", max_length=512)
    return {**enc, "labels": enc["input_ids"], "advantage": row["reward"] - row["mean_reward"]}


def main():
    logged = load_dataset("json", data_files="code/rollouts.jsonl", split="train").map(prepare)
    trainer = OfflineRL(
        model=AutoModelForCausalLM.from_pretrained("models/base"),
        args=TrainingArguments(output_dir="output/offline", learning_rate=1e-6, remove_unused_columns=False),
        train_dataset=logged,
    )
    trainer.train()
    trainer.save_model("output/offline")


main()
