import json
import os

from vllm import LLM, SamplingParams

N = 16
rows = [json.loads(l) for l in open("data/train.jsonl")]
llm = LLM(model=os.environ["MODEL_PATH"], max_model_len=2048)
outs = llm.generate([r["question"] for r in rows], SamplingParams(n=N, temperature=1.0, max_tokens=512))


def answer_of(text):
    return text.split("####")[-1].strip() if "####" in text else None


good = 0
with open("code/accepted.jsonl", "w") as sink:
    for row, out in zip(rows, outs):
        for o in out.outputs:
            if answer_of(o.text) == answer_of(row["answer"]):
                sink.write(json.dumps({"q": row["question"], "a": o.text}) + "\n")
                good += 1
                break
print("accepted", good)
