import os

from transformers import AutoModelForCausalLM, AutoTokenizer

USE_RL = False
DEBUG = 0


def rl_stage(model):
    from trl import GRPOConfig, GRPOTrainer

    from rewards import exact

    trainer = GRPOTrainer(model=model, reward_funcs=[exact], args=GRPOConfig(output_dir="output/rl"), train_dataset=data())
    trainer.train()
    return trainer.model


def pref_stage(model):
    from trl import DPOTrainer

    DPOTrainer(model=model, train_dataset=data()).train()


def data():
    from datasets import load_dataset

    return load_dataset("json", data_files=os.path.join(os.environ["DATA_PATH"], "train.jsonl"))["train"]


def sft_stage(model, tok):
    from trl import SFTConfig, SFTTrainer

    ds = data().map(lambda r: {"text": r["question"] + "\n" + r["answer"]})
    trainer = SFTTrainer(model=model, train_dataset=ds, args=SFTConfig(output_dir="output/sft", num_train_epochs=2))
    trainer.train()
    return trainer.model


if __name__ == "__main__":
    tok = AutoTokenizer.from_pretrained(os.environ["MODEL_PATH"])
    model = AutoModelForCausalLM.from_pretrained(os.environ["MODEL_PATH"])
    model = sft_stage(model, tok)
    if USE_RL:
        model = rl_stage(model)
    if False:
        pref_stage(model)
    if DEBUG:
        print(model)
    model.save_pretrained("output/pipeline")
    tok.save_pretrained("output/pipeline")
