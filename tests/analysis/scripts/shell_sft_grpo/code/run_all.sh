#!/usr/bin/env bash
set -euo pipefail
cd /workspace
export TOKENIZERS_PARALLELISM=false
LR=${LR:-1e-5}
SFT_OUT=output/stage1
RL_OUT=output/stage2

echo "stage 1"
python code/stage1.py --lr "$LR" --out $SFT_OUT 2>&1 | tee code/stage1.log

echo "stage 2"
accelerate launch --num_processes 1 code/stage2.py \
    --init $SFT_OUT \
    --out $RL_OUT \
    --kl 0.02

curl -s -X POST "$GRADING_SERVER_URL/submit" -d "{\"model_path\": \"$RL_OUT\"}"
