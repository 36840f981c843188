import types

from datasets import load_dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer, TrainingArguments

tok = AutoTokenizer.from_pretrained("models/base")
data = load_dataset("json", data_files="code/scored_samples.jsonl", split="train")


def encode(r):
    e = tok(r["prompt"] + r["sample"], truncation=True, max_length=300, padding="max_length")
    return {"input_ids": e["input_ids"], "adv": r["advantage"]}


def reinforce_loss(self, model, inputs, return_outputs=False, **kw):
    ids = inputs["input_ids"]
    lp = model(ids).logits[:, :-1].log_softmax(-1).gather(-1, ids[:, 1:, None]).squeeze(-1)
    return -(lp.sum(-1) * inputs["adv"]).mean()


trainer = Trainer(
    AutoModelForCausalLM.from_pretrained("models/base"),
    TrainingArguments(output_dir="output/patched", learning_rate=1e-6, remove_unused_columns=False),
    train_dataset=data.map(encode),
)
trainer.compute_loss = types.MethodType(reinforce_loss, trainer)
trainer.train()
trainer.save_model("output/patched")
