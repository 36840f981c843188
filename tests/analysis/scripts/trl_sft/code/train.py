"""Fine-tune on the worked solutions."""
import json
import os

from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import SFTConfig, SFTTrainer

MODEL = os.environ["MODEL_PATH"]
OUT = os.path.join(os.environ["OUTPUT_DIR"], "sft-v1")


def load_rows(path):
    with open(path) as f:
        for line in f:
            row = json.loads(line)
            yield {
                "messages": [
                    {"role": "user", "content": row["question"]},
                    {"role": "assistant", "content": row["answer"]},
                ]
            }


def main():
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    model = AutoModelForCausalLM.from_pretrained(MODEL, torch_dtype="bfloat16")
    rows = list(load_rows(os.environ["DATA_PATH"] + "/train.jsonl"))
    dataset = Dataset.from_list(rows).shuffle(seed=3)
    config = SFTConfig(
        output_dir=OUT,
        num_train_epochs=3,
        learning_rate=2e-5,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=4,
        lr_scheduler_type="cosine",
        warmup_ratio=0.05,
        logging_steps=10,
        save_strategy="no",
    )
    trainer = SFTTrainer(model=model, args=config, train_dataset=dataset, processing_class=tokenizer)
    trainer.train()
    trainer.save_model(OUT)
    tokenizer.save_pretrained(OUT)
    print("saved", OUT)


if __name__ == "__main__":
    main()
