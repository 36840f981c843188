"""Sample with vLLM, keep what is right, fine-tune on it; three rounds."""
import gc
import json
import os
import random

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import SFTConfig, SFTTrainer
from vllm import LLM, SamplingParams

ROUNDS = 3
K = 8


def gold(answer):
    return answer.split("####")[-1].strip()


def sample(path, rows):
    engine = LLM(model=path, gpu_memory_utilization=0.8)
    params = SamplingParams(n=K, temperature=0.8, max_tokens=400)
    outputs = engine.generate([r["question"] for r in rows], params)
    kept = []
    for row, out in zip(rows, outputs):
        seen = set()
        for candidate in out.outputs:
            text = candidate.text
            if "####" not in text:
                continue
            if gold(text) != gold(row["answer"]):
                continue
            if text in seen:
                continue
            seen.add(text)
            kept.append({"prompt": row["question"], "completion": text})
    del engine
    gc.collect()
    torch.cuda.empty_cache()
    random.shuffle(kept)
    return kept


def finetune(start, kept, out):
    model = AutoModelForCausalLM.from_pretrained(start)
    tok = AutoTokenizer.from_pretrained(start)
    args = SFTConfig(output_dir=out, num_train_epochs=1, learning_rate=1e-5, per_device_train_batch_size=8)
    trainer = SFTTrainer(model=model, args=args, train_dataset=Dataset.from_list(kept), processing_class=tok)
    trainer.train()
    trainer.save_model(out)


def main():
    rows = [json.loads(l) for l in open(os.path.join(os.environ["DATA_PATH"], "train.jsonl"))]
    current = os.environ["MODEL_PATH"]
    for r in range(ROUNDS):
        kept = sample(current, rows)
        print(f"round {r}: kept {len(kept)}")
        out = f"output/star-{r}"
        finetune(current, kept, out)
        current = out


if __name__ == "__main__":
    main()
