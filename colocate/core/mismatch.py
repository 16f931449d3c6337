"""How far engine and trainer are apart on the same weights, over a run, and when to say so.

``colocate.learn.mismatch`` measures each training step; this adds steps up, token by token.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from colocate.core.types import Version


@dataclass(slots=True)
class MismatchBook:
    """Feed it the metrics of each training step; it answers with a warning, once.

    Attributes:
        warn_above: The mean absolute difference of a step, in nats, that is too large; None: none.
    """

    warn_above: float | None = None
    last_mean_abs: float | None = None
    _steps: int = 0
    _tokens: float = 0.0
    _abs: float = 0.0
    _abs_max: float = 0.0
    _k3: float = 0.0
    _ratio: float = 0.0
    _ratio_squared: float = 0.0
    _ratio_min: float = math.inf
    _ratio_max: float = -math.inf
    _trainer_nats: float = 0.0
    _engine_nats: float = 0.0
    _warned: bool = False

    def observe(self, metrics: Mapping[str, float], version: Version) -> str | None:
        """Takes in a step, where any of its tokens came from the weights that it began with.

        Args:
            metrics: As ``colocate.learn.mismatch.mismatch_metrics`` names them, among others.
            version: After the step.
        """
        if "mismatch_num_tokens" not in metrics:
            return None
        tokens, mean_abs, largest, k3, ess, ratio = (
            metrics[f"mismatch_{name}"]
            for name in (
                "num_tokens",
                "mean_abs_logprob_diff",
                "max_abs_logprob_diff",
                "k3_kl",
                "ess",
                "ratio_mean",
            )
        )
        self._steps += 1
        self._tokens += tokens
        self._abs += tokens * mean_abs
        self._abs_max = max(self._abs_max, largest)
        self._k3 += tokens * k3
        self._ratio += tokens * ratio
        # The definition of the effective sample size, solved for the sum of squares.
        self._ratio_squared += tokens * ratio**2 / ess
        self._ratio_min = min(self._ratio_min, metrics["mismatch_ratio_min"])
        self._ratio_max = max(self._ratio_max, metrics["mismatch_ratio_max"])
        self._trainer_nats += tokens * math.log(metrics["mismatch_trainer_perplexity"])
        self._engine_nats += tokens * math.log(metrics["mismatch_engine_perplexity"])
        self.last_mean_abs = mean_abs
        if self._warned or self.warn_above is None or mean_abs <= self.warn_above:
            return None
        self._warned = True
        return (
            f"engine and trainer disagree on the same weights: in step {version} the "
            f"log-probabilities of {tokens:,.0f} tokens differ by {mean_abs:.2g} in the mean and "
            f"by {largest:.2g} at most, k3 KL {k3:.2g}; inference.mismatch_warn is "
            f"{self.warn_above:g}. Importance weights are off by as much, and what is learnt is "
            "biased. What helps is in docs/algorithms.md, under Mismatch"
        )

    def summary(self) -> dict[str, float | int | None]:
        """The section ``mismatch`` of ``summary.json``; figures are None where nothing was seen.

        Means are over all tokens that were compared, extremes too; perplexities are those of
        these tokens, and ``ess`` is a share of their number.
        """
        figures: dict[str, float | None] = dict.fromkeys(
            (
                "mean_abs_logprob_diff",
                "max_abs_logprob_diff",
                "k3_kl",
                "ess",
                "ratio_mean",
                "ratio_min",
                "ratio_max",
                "trainer_perplexity",
                "engine_perplexity",
            )
        )
        if self._tokens:
            figures |= {
                "mean_abs_logprob_diff": self._abs / self._tokens,
                "max_abs_logprob_diff": self._abs_max,
                "k3_kl": self._k3 / self._tokens,
                "ess": self._ratio**2 / (self._tokens * self._ratio_squared),
                "ratio_mean": self._ratio / self._tokens,
                "ratio_min": self._ratio_min,
                "ratio_max": self._ratio_max,
                "trainer_perplexity": math.exp(self._trainer_nats / self._tokens),
                "engine_perplexity": math.exp(self._engine_nats / self._tokens),
            }
        return {
            **figures,
            "num_tokens": int(self._tokens),
            "num_steps": self._steps,
            "warn_above": self.warn_above,
        }
