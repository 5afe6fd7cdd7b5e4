"""The learning rate as a pure function of the step: nothing to save, nothing to restore."""

import math

from steps.train import TrainConfig


def learning_rate(step: int, config: TrainConfig) -> float:
    """Learning rate of the update that makes step `step` (the first is 1).

    Linear from 0 to the peak over `warmup_steps`, then half a cosine down to `min_learning_rate`,
    which the last step has exactly (Loshchilov and Hutter, SGDR, without restarts).
    """
    if step <= config.warmup_steps:
        return config.learning_rate * step / config.warmup_steps
    progress = (step - config.warmup_steps) / max(1, config.steps - config.warmup_steps)
    span = config.learning_rate - config.min_learning_rate
    return config.min_learning_rate + span * (1 + math.cos(math.pi * progress)) / 2
