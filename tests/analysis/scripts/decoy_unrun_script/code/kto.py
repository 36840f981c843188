import os

from datasets import load_dataset
from trl import KTOConfig, KTOTrainer, ModelConfig, ScriptArguments, TrlParser

if __name__ == "__main__":
    parser = TrlParser((ScriptArguments, KTOConfig, ModelConfig))
    script_args, training_args, model_args = parser.parse_args_and_config()
    data = load_dataset("json", data_files="code/thumbs.jsonl", split="train")
    trainer = KTOTrainer(model=os.environ["MODEL_PATH"], args=training_args, train_dataset=data)
    trainer.train()
    trainer.save_model("output/kto")
