set -x
python3 -m verl.trainer.main_ppo \
    algorithm.adv_estimator=grpo \
    data.train_files=data/train.parquet \
    data.train_batch_size=256 \
    data.max_response_length=512 \
    actor_rollout_ref.model.path=models/base \
    actor_rollout_ref.actor.optim.lr=1e-6 \
    actor_rollout_ref.rollout.n=8 \
    actor_rollout_ref.rollout.temperature=1.0 \
    custom_reward_function.path=code/score.py \
    trainer.default_local_dir=output/verl \
    trainer.total_epochs=2 "$@"
python code/merge_fsdp.py output/verl output/verl-hf
