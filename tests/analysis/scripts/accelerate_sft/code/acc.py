import json
from contextlib import nullcontext

import torch
from accelerate import Accelerator
from peft import LoraConfig, TaskType, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer, get_scheduler
from torch.utils.data import DataLoader

CONFIG = {
    "base": "models/base",
    "lora": {"r": 16, "lora_alpha": 32, "lora_dropout": 0.05},
    "train": {"lr": 1e-4, "epochs": 1, "batch_size": 4},
    "adapter": "code/adapter",
    "merged": "output/lora-merged",
}


def build_loader(tok, acc):
    with acc.main_process_first():
        texts = [f"<q>{d['question']}</q><a>{d['answer']}</a>" for d in map(json.loads, open("data/train.jsonl"))]

    def collate(chunk):
        out = tok(chunk, padding=True, return_tensors="pt")
        return out | {"labels": torch.where(out.attention_mask.bool(), out.input_ids, -100)}

    return DataLoader(texts, collate_fn=collate, shuffle=True, batch_size=CONFIG["train"]["batch_size"])


def main(cfg=CONFIG):
    acc = Accelerator(gradient_accumulation_steps=4, mixed_precision="bf16")
    tok = AutoTokenizer.from_pretrained(cfg["base"])
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(cfg["base"]), LoraConfig(task_type=TaskType.CAUSAL_LM, **cfg["lora"]))
    opt = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=cfg["train"]["lr"])
    model, opt, loader = acc.prepare(model, opt, build_loader(tok, acc))
    sched = get_scheduler("linear", opt, 10, len(loader))
    for epoch in range(cfg["train"]["epochs"]):
        for batch in loader:
            with acc.accumulate(model) if epoch >= 0 else nullcontext():
                acc.backward(model(**batch).loss)
                opt.step(), sched.step(), opt.zero_grad()
    acc.wait_for_everyone()
    inner = acc.unwrap_model(model)
    inner.save_pretrained(cfg["adapter"])
    inner.merge_and_unload().save_pretrained(cfg["merged"])
    tok.save_pretrained(cfg["merged"])


if __name__ == "__main__":
    main()
