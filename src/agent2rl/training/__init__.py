"""Training recipes in plain torch: SFT, rejection sampling and GRPO with online samples, for any causal LM.

    from pathlib import Path
    from agent2rl.training import models, prompts
    from agent2rl.training.grpo import GrpoSettings, grpo
    from agent2rl.training.progress import TrainingProgress
    from agent2rl.training.sft import SftSettings, sft

    model, tokenizer = models.load(Path("models/seedling"))
    sft(model, tokenizer, pairs, SftSettings(epochs=3), TrainingProgress("sft"))  # pairs of prompt and answer
    grpo(model, tokenizer, questions, reward, GrpoSettings(seconds=60), TrainingProgress("grpo"))
    models.save(model, tokenizer, Path("output/v1"))                             # ready to be submitted

For interactive tasks, `rollouts.encode_expert_games` plays an expert's games for `sft.imitate` (formerly
`rollouts.demonstrations`), `conversations.encode_demonstrations` uses those in a file
(`demonstrations.read_demonstrations`), and `rollouts.grpo_in_world` learns from the model's own games.
`rollouts.WorldSetup` defines the prompts. `conversations.encode_conversations` makes training sequences of
any other chats, such as games that the model played.

A prompt is the text that the model reads: `prompts.render` makes it as the grader does. One device, one
process; adapters, sharded models and serving are not supported.
"""
