import collections
import json
import re
from pathlib import Path

from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, DataCollatorForLanguageModeling, Trainer, TrainingArguments
from vllm import LLM, SamplingParams

BASE = "models/base"


def final(t):
    m = re.search(r"answer is (-?\d+)", t)
    return m and m.group(1)


def pseudo_label():
    qs = [json.loads(l)["question"] for l in Path("data/train.jsonl").read_text().splitlines()]
    outs = LLM(model=BASE).generate(qs, SamplingParams(n=16, temperature=0.8, max_tokens=256))
    for q, o in zip(qs, outs):
        texts = [c.text for c in o.outputs]
        votes = collections.Counter(f for t in texts if (f := final(t)))
        if not votes:
            continue
        winner, count = votes.most_common(1)[0]
        if count < 8:
            continue
        yield from ({"text": q + "\n" + t} for t in texts if final(t) == winner)


tok = AutoTokenizer.from_pretrained(BASE)
rows = Dataset.from_list(list(pseudo_label())).map(lambda r: tok(r["text"], truncation=True, max_length=512))
trainer = Trainer(
    model=AutoModelForCausalLM.from_pretrained(BASE),
    args=TrainingArguments("output/sc", learning_rate=1e-5, num_train_epochs=1),
    train_dataset=rows,
    data_collator=DataCollatorForLanguageModeling(tok, mlm=False),
)
trainer.train()
trainer.save_model("output/sc")
tok.save_pretrained("output/sc")
