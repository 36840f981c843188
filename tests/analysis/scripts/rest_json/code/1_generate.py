import json, os, sys
from concurrent.futures import ThreadPoolExecutor
from openai import OpenAI

client = OpenAI(base_url="http://localhost:8000/v1", api_key="none")  # our own model, served here by vLLM
rows = json.load(open("code/train.json"))


def attempt(row):
    r = client.chat.completions.create(model="base", messages=[{"role": "user", "content": row["question"]}], n=8, temperature=1.0)
    want = row["answer"].split("####")[-1].strip()
    return [{"q": row["question"], "a": c.message.content} for c in r.choices if c.message.content.rstrip().endswith(want)]


with ThreadPoolExecutor(32) as pool:
    good = [x for xs in pool.map(attempt, rows) for x in xs]
json.dump(good, open("code/good.json", "w"))
print(len(good), file=sys.stderr)
