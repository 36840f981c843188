"""Second attempt: go on from the supervised model with preferences from its own samples."""
import json
import os
from pathlib import Path

from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import DPOConfig, DPOTrainer

OUTPUT = Path(os.environ["OUTPUT_DIR"])
START = OUTPUT / "sft"
tok = AutoTokenizer.from_pretrained(START)
model = AutoModelForCausalLM.from_pretrained(str(START))


def is_right(text, row):
    return text.strip().endswith(row["answer"].split("####")[-1].strip())


def pairs(rows, n=4):
    for row in rows:
        enc = tok(row["question"], return_tensors="pt")
        outs = model.generate(**enc, do_sample=True, num_return_sequences=n, max_new_tokens=200)
        texts = tok.batch_decode(outs[:, enc.input_ids.shape[1]:], skip_special_tokens=True)
        good = [t for t in texts if is_right(t, row)]
        bad = [t for t in texts if not is_right(t, row)]
        if good and bad:
            yield {"prompt": row["question"], "chosen": good[0], "rejected": bad[0]}


rows = [json.loads(l) for l in open("data/train.jsonl")][:2000]
data = Dataset.from_list(list(pairs(rows)))
cfg = DPOConfig(output_dir=str(OUTPUT / "dpo"), beta=0.1, learning_rate=5e-7, num_train_epochs=1)
trainer = DPOTrainer(model, args=cfg, train_dataset=data, processing_class=tok)
trainer.train()
trainer.model.save_pretrained(OUTPUT / "sft-dpo")
tok.save_pretrained(OUTPUT / "sft-dpo")
