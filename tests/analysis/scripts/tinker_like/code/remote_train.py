import json
import random

import numpy as np
import tinker
from tinker import types

service = tinker.ServiceClient()
trainer = service.create_lora_training_client(base_model="models/base", rank=32)
tok = trainer.get_tokenizer()
rows = [json.loads(l) for l in open("data/train.jsonl")]


def correct(text, row):
    return text.strip().split()[-1:] == row["answer"].strip().split()[-1:]


for step in range(100):
    sampler = trainer.save_weights_and_get_sampling_client(name=f"s{step}")
    data = []
    for row in random.sample(rows, 8):
        prompt = types.ModelInput.from_ints(tok.encode(row["question"]))
        res = sampler.sample(prompt=prompt, num_samples=8, sampling_params=types.SamplingParams(max_tokens=256)).result()
        r = np.array([float(correct(tok.decode(s.tokens), row)) for s in res.sequences])
        adv = r - r.mean()
        for s, a in zip(res.sequences, adv):
            data.append(types.Datum(model_input=prompt, loss_fn_inputs={"tokens": s.tokens, "logprobs": s.logprobs, "advantages": [a] * len(s.tokens)}))
    trainer.forward_backward(data, loss_fn="importance_sampling")
    trainer.optim_step(types.AdamParams(learning_rate=4e-5))
trainer.save_state("output/tinker")
