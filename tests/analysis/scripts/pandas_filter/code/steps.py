import argparse
import os

import pandas as pd
from datasets import Dataset
from trl import SFTConfig, SFTTrainer
from vllm import LLM, SamplingParams


def generate(base: str, frame: pd.DataFrame) -> pd.DataFrame:
    llm = LLM(base)
    params = SamplingParams(temperature=0.7, top_p=0.95, n=4, max_tokens=300)
    records = []
    for (_, row), result in zip(frame.iterrows(), llm.generate(frame["question"].tolist(), params)):
        for sample in result.outputs:
            records.append({"question": row["question"], "gold": row["answer"], "reply": sample.text})
    return pd.DataFrame(records)


def grade(frame):
    last = frame["reply"].str.extract(r"(-?\d+)\s*$")[0]
    want = frame["gold"].str.extract(r"####\s*(-?\d+)")[0]
    frame["ok"] = last == want
    return frame


def main():
    cli = argparse.ArgumentParser()
    cli.add_argument("--phase", default="all")
    opts = cli.parse_args()
    base = os.environ["MODEL_PATH"]
    train = pd.read_json("data/train.jsonl", lines=True)
    graded = grade(generate(base, train))
    kept = graded[graded["ok"]].drop_duplicates("reply")
    print(f"{len(kept)} of {len(graded)} kept, phase {opts.phase}")
    ds = Dataset.from_pandas(kept).map(lambda r: {"prompt": r["question"], "completion": r["reply"]})
    trainer = SFTTrainer(model=base, train_dataset=ds, args=SFTConfig("output/filtered", learning_rate=1e-5))
    trainer.train()
    trainer.save_model()


if __name__ == "__main__":
    main()
