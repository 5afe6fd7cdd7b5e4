"""What a person who watches sees: one logfmt line about every second, from rank 0, on stderr.

    progress step=120 steps=1500 loss=3.2100 lr=0.01 tokens_per_s=25000 mfu=0.12 eta_s=180 phase=training

MFU, model FLOPs utilisation (Chowdhery et al., PaLM, appendix B, without the attention term):

    6 x parameters x tokens a second / (peak FLOP/s of a device x devices)

It is left out when TRIPOD_PEAK_TFLOPS does not say what the peak is.
"""

import sys
import time
from typing import Literal

Phase = Literal["training", "checkpointing", "draining", "waiting"]
_INTERVAL_S = 1.0


class Progress:
    """Tells of one training.

    Args:
        start_step: steps that an earlier attempt did.
        peak_flops: of the whole gang, FLOP/s; 0 when unknown.
        on: False on ranks that stay silent.
    """

    def __init__(self, *, start_step: int, steps: int, num_parameters: int, peak_flops: float, on: bool):
        self.steps = steps
        self.num_parameters = num_parameters
        self.peak_flops = peak_flops
        self.on = on
        self.told_at = time.perf_counter()
        self.step = start_step
        self.tokens = 0
        self.tokens_per_s = 0.0
        self.steps_per_s = 0.0
        self.first = True
        self.newest = (start_step, 0.0, 0.0)

    def tell(self, *, step: int, loss: float, lr: float, tokens: int) -> None:
        """Called every step; prints when a second has gone by, and at the first and the last step."""
        self.tokens += tokens
        self.newest = (step, loss, lr)
        passed = time.perf_counter() - self.told_at
        if passed >= _INTERVAL_S or self.first or step == self.steps:
            if passed >= _INTERVAL_S / 2 or self.first:  # over less it would say nothing
                self.tokens_per_s = self.tokens / passed
                self.steps_per_s = (step - self.step) / passed
                self.step, self.tokens, self.told_at = step, 0, time.perf_counter()
            self.first = False
            self.phase("training")

    def phase(self, phase: Phase) -> None:
        """Print the newest numbers, with what the gang is doing."""
        if self.on:
            print(self._line(*self.newest, phase), file=sys.stderr, flush=True)

    def _line(self, step: int, loss: float, lr: float, phase: Phase) -> str:
        mfu = ""
        if self.peak_flops:
            mfu = f" mfu={6 * self.num_parameters * self.tokens_per_s / self.peak_flops:.3f}"
        eta = (self.steps - step) / self.steps_per_s if self.steps_per_s else 0
        return (
            f"progress step={step} steps={self.steps} loss={loss:.4f} lr={lr:.4g} "
            f"tokens_per_s={self.tokens_per_s:.0f}{mfu} eta_s={eta:.0f} phase={phase}"
        )
