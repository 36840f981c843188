# -*- coding: utf-8 -*-
import json
import sys
from agent2rl.models.abacus import Abacus

def read(path):
    rows = []
    for line in open(path):
        try:
            rows.append(json.loads(line))
        except ValueError, e:
            print >>sys.stderr, "bad line", e
    return rows

rows = read("data/train.jsonl")
print "rows", len(rows)
m = Abacus.load("models/abacus")
m.fit([r["question"] for r in rows], [r["answer"] for r in rows], epochs=5, learning_rate=2.0)
m.save("output/old")
print "done"
