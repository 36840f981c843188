from datasets import load_dataset
from trl import DPOConfig, DPOTrainer

trainer = DPOTrainer(
    model="output/kto",
    args=DPOConfig(output_dir="output/dpo", beta=0.1),
    train_dataset=load_dataset("json", data_files="code/pairs.jsonl", split="train"),
)
trainer.train()
trainer.save_model("output/dpo")
