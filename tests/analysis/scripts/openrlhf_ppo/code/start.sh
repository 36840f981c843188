set -e
RAY=1
for kind in rm sft; do
  echo "skip $kind"
done
deepspeed --module openrlhf.cli.train_rm --pretrain models/base --save_path code/rm --dataset code/pairs.jsonl
python -m openrlhf.cli.train_ppo_ray \
  --pretrain models/base --reward_pretrain code/rm --save_path output/ppo \
  --actor_learning_rate 5e-7 --init_kl_coef 0.01 --num_episodes 1
