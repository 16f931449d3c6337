"""The typed configuration of a run: what each field is, and what each may be.

The Hydra tree in ``conf/`` composes a plain mapping; ``RunConfig`` is its validated, frozen form.
Rules that relate several fields are in ``colocate.preflight``.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from colocate.config_data import DataConfig as DataConfig
from colocate.config_data import RewardConfig as RewardConfig
from colocate.config_types import (
    Fraction,
    ImportPath,
    NonNegativeFloat,
    NonNegativeInt,
    OpenFraction,
    PositiveFloat,
    PositiveInt,
)
from colocate.config_types import Section as Section

Beta = Annotated[float, Field(ge=0, lt=1)]


def _refuse_bool(value: object) -> object:
    """``True == 1`` in Python, so a literal of integers would take it for 1."""
    if isinstance(value, bool):
        raise ValueError("a boolean is not one of the choices")
    return value


def _all_linear_or_names(value: object) -> object:
    """One complaint, where a union would make one for each of its types."""
    if value == "all-linear":
        return value
    if isinstance(value, list | tuple) and value and all(isinstance(each, str) for each in value):
        return tuple(value)
    raise ValueError("must be `all-linear`, or a list of one or more names of layers")


ZeroStage = Annotated[Literal[0, 1, 2, 3], BeforeValidator(_refuse_bool)]
SleepLevel = Annotated[Literal["auto", 0, "kv", 1, 2], BeforeValidator(_refuse_bool)]
Packing = Literal["auto", True, False]
TargetModules = Annotated[
    Literal["all-linear"] | tuple[str, ...], BeforeValidator(_all_linear_or_names)
]


class EmbeddedModelConfig(Section):
    """A Qwen3-architecture transformer made from nothing, for tests and the quickstart."""

    hidden_size: PositiveInt = Field(128, description="Width of the residual stream.")
    num_layers: PositiveInt = Field(2, le=10_000, description="Transformer blocks.")
    intermediate_size: PositiveInt = Field(256, description="Width of the MLP.")
    num_attention_heads: PositiveInt = Field(
        4, description="Query heads; a multiple of the key and value heads."
    )
    num_key_value_heads: PositiveInt = Field(2, description="Key and value heads.")
    head_dim: PositiveInt = Field(32, description="Width of a head.")
    tie_word_embeddings: bool = Field(True, description="The output head is the embedding.")
    initializer_range: PositiveFloat = Field(
        0.06, description="Standard deviation of the initial weights."
    )


class LoraConfig(Section):
    """Low-rank adapters (Hu et al. 2021, LoRA), trained in place of the weights.

    A targeted weight W (out, in) becomes W + scale x B A, with A (rank, in) drawn at random and B
    (out, rank) of zeros, so that the model begins as it is.
    """

    rank: PositiveInt = Field(16, description="r, of each adapter.")
    alpha: PositiveFloat = Field(
        32.0, description="B A is scaled by alpha / rank, or as `rank_stabilized` has it."
    )
    rank_stabilized: bool = Field(
        False, description="Scale by alpha / sqrt(rank) instead (rsLoRA): for large ranks."
    )
    target_modules: TargetModules = Field(
        "all-linear",
        description="Linear layers with an adapter, by name or by the end of it, as [q_proj, "
        "v_proj]; `all-linear`: all but the output head.",
    )

    @property
    def scale(self) -> float:
        """Of B A. rsLoRA's: Kalajdzievski 2023, A rank stabilization scaling factor."""
        return self.alpha / (self.rank**0.5 if self.rank_stabilized else self.rank)


class ModelConfig(Section):
    path: str | None = Field(None, description="Hugging Face model folder or hub name.")
    embedded: EmbeddedModelConfig | None = Field(
        None, description="Make a small model instead of loading one. Excludes `path`."
    )
    dtype: Literal["float32", "bfloat16"] = Field(
        "bfloat16", description="Of the engine's weights, and of the trainer's forward pass."
    )
    chat_template: str = Field(
        "auto",
        min_length=1,
        description="How conversations become tokens: `auto` by the tokenizer's chat template, "
        "where it has one; `none` as plain text; a file (FILE.jinja) by that template.",
    )
    chat_template_options: dict[str, Any] = Field(
        default_factory=dict,
        description="Variables that the template reads, as `{enable_thinking: false}`.",
    )
    lora: LoraConfig | None = Field(
        None,
        description="Train low-rank adapters and leave the model's weights as they are, as with "
        "`model.lora={rank: 16}`; null: train all weights. See lora.md.",
    )


DEFAULT_MISMATCH_WARN = {"float32": 1e-3, "bfloat16": 0.05}
"""Mean absolute difference of log-probabilities, in nats: far above what float32 engines that are
right differ by (some 1e-6), and little beside a clip range of 0.2."""


class InferenceConfig(Section):
    num_engines: PositiveInt = Field(1, description="Engines side by side.")
    tensor_parallel_size: PositiveInt = Field(1, description="Devices that share one engine.")
    kv_cache_memory_bytes: PositiveInt = Field(description="KV cache of one engine worker.")
    max_model_len: PositiveInt = Field(description="Longest context, prompt and all turns.")
    max_num_seqs: PositiveInt = Field(256, description="Sequences decoded together.")
    enforce_eager: bool = Field(
        False, description="Capture and compile nothing: starts sooner, decodes more slowly."
    )
    sleep: SleepLevel = Field(
        "auto",
        description="What a swap evicts of the engine: 0 nothing (pause only); kv its KV cache; "
        "1 also its weights, kept in RAM; 2 also its weights, kept nowhere, since a publication "
        "rewrites them. `auto`: the cheapest, by measured cost, with which engine and trainer fit "
        "`memory.budget_bytes`, or the device.",
    )
    verify_every: NonNegativeInt = Field(
        10,
        description="Swaps from one comparison of the engine's log-probabilities of fixed prompts "
        "with the trainer's to the next; 0: never.",
    )
    verify_tolerance: PositiveFloat | None = Field(
        None,
        description="The difference between them that passes: in float32 the largest (null: "
        "0.001), in bfloat16 the mean (null: 0.25).",
    )
    fp32_head: bool = Field(
        False,
        description="Engine and trainer compute the output head of a bfloat16 model in float32: "
        "neither then rounds its logits.",
    )
    batch_invariant: bool = Field(
        False,
        description="The engine's kernels give a sequence the same log-probabilities whatever "
        "else is in its batch; slower. GPUs of compute capability 9.0 or more.",
    )
    mismatch_warn: PositiveFloat | None = Field(
        None,
        description="A training step whose mean absolute difference between the engine's and the "
        "trainer's log-probabilities, on the same weights, is larger brings a warning, once a run; "
        "null: 0.001 in float32, 0.05 in bfloat16.",
    )
    engine_args: dict[str, Any] = Field(
        default_factory=dict,
        description="Further keyword arguments of vLLM's AsyncEngineArgs. What colocate sets "
        "itself is refused.",
    )

    def warns_of_mismatch_above(self, *dtypes: str) -> float:
        """``mismatch_warn``, or the default of the coarsest type that a forward pass is in."""
        if self.mismatch_warn is not None:
            return self.mismatch_warn
        return max(DEFAULT_MISMATCH_WARN[dtype] for dtype in dtypes)


class RolloutConfig(Section):
    max_new_tokens: PositiveInt = Field(description="Per turn.")
    max_turns: PositiveInt = Field(1, description="Turns of the agent in one trajectory, at most.")
    temperature: NonNegativeFloat = Field(1.0, description="Of sampling; 0 is greedy.")
    top_p: Annotated[float, Field(gt=0, le=1)] = Field(
        1.0, description="Sample from the likeliest tokens of this total probability; 1: from all."
    )
    top_k: PositiveInt | None = Field(
        None, description="Sample from so many likeliest tokens; null: from all."
    )
    min_p: Fraction = Field(
        0.0, description="Sample tokens of at least this share of the likeliest's probability."
    )
    redundant_per_group: NonNegativeInt = Field(
        0,
        description="Trajectories of a group beyond `algorithm.group_size`: the first so many to "
        "finish make the group, the others are cancelled.",
    )
    redundant_groups: NonNegativeInt = Field(
        0, description="Groups that are admitted beyond what the bound on staleness admits."
    )
    spare_groups: Literal["cancel", "carry"] = Field(
        "cancel",
        description="What a swap does with as many unfinished groups: `cancel` them, or `carry` "
        "them to the next one, as long as they are within the bound.",
    )
    stop: tuple[str, ...] = Field(
        (), strict=False, description="A turn ends after one of these; it is kept."
    )


DEFAULT_BUCKET_BYTES = {"cpu": 16 * 2**20, "cuda": 256 * 2**20}
"""On CPU each publication begins with fresh pages of shared memory, which the kernel takes far
longer to find than to fill: few of them carry all the weights, bucket after bucket."""


class TrainerConfig(Section):
    zero_stage: ZeroStage = Field(
        1,
        description="What DeepSpeed divides among the ranks: 0 nothing, 1 optimizer state, "
        "2 gradients too, 3 parameters too.",
    )
    num_ranks: PositiveInt = Field(1, description="Processes that train, one a device.")
    micro_batch_tokens: PositiveInt = Field(
        4096,
        description="Tokens in one forward and backward pass of one rank, padding included; more "
        "only where a single trajectory has more.",
    )
    packing: Packing = Field(
        "auto",
        description="Trajectories of a micro-batch lie end to end, without padding, and attention "
        "is cut between them. `auto`: with the architectures that are known to score them so as "
        "alone, else they are padded; `true`: others are refused; `false`: always padded.",
    )
    gradient_checkpointing: bool = Field(
        False,
        description="The backward pass computes each layer's activations again, of which the "
        "forward pass keeps only the input: much less memory, for about a third more work.",
    )
    num_minibatches: PositiveInt = Field(1, description="Optimizer steps per training step.")
    learning_rate: PositiveFloat = Field(1e-6, description="After warm-up.")
    warmup_steps: NonNegativeInt = Field(0, description="Training steps of linear warm-up.")
    schedule: Literal["constant", "linear", "cosine"] = Field(
        "constant", description="How the learning rate goes on after warm-up, over `steps`."
    )
    betas: tuple[Beta, Beta] = Field(
        (0.9, 0.999), strict=False, description="AdamW's decay of the two moments."
    )
    eps: PositiveFloat = Field(1e-8, description="AdamW's term in the denominator.")
    weight_decay: NonNegativeFloat = Field(0.0, description="AdamW's decoupled decay.")
    max_grad_norm: PositiveFloat = Field(1.0, description="Larger gradients are scaled to it.")
    dtype: Literal["float32", "bfloat16"] | None = Field(
        None, description="Of the forward pass; null: `model.dtype`, which weights are cast to."
    )
    publish_bucket_bytes: PositiveInt | None = Field(
        None,
        description="Weights are published in buckets of about this size; null: 256 MiB on GPUs, "
        "16 MiB on CPU, where two exist at a time.",
    )
    deepspeed: dict[str, Any] = Field(
        default_factory=dict,
        description="Merged deeply into DeepSpeed's configuration. What colocate sets itself is "
        "refused.",
    )

    def bucket_bytes(self, device: str) -> int:
        """``publish_bucket_bytes``, or what is best on this kind of device."""
        return self.publish_bucket_bytes or DEFAULT_BUCKET_BYTES[device]


class CorrectionConfig(Section):
    """What makes data of an older policy, or of another engine, count as the trainer's own."""

    objective: Literal["decoupled", "plain"] = Field(
        "decoupled",
        description="`decoupled`: the ratio is of the current policy over that which the step "
        "began with (proximal), weights are of that over the policy that sampled (behaviour). "
        "`plain`: both are of the current over the behaviour policy.",
    )
    level: Literal["token", "sequence", "geometric"] = Field(
        "token",
        description="What weights are ratios of: tokens, whole sequences (the product over their "
        "tokens), or sequences by the geometric mean of theirs.",
    )
    mode: Literal["truncate", "mask", "none"] = Field(
        "truncate",
        description="`truncate` cuts weights at the cap; `mask` rejects what has one above it, or "
        "below the floor; `none` uses no weights.",
    )
    cap: Annotated[float, Field(gt=1)] = Field(2.0, description="C: the largest weight.")
    floor: OpenFraction | None = Field(
        None, description="`mask`: the smallest weight; null: no limit."
    )
    band_low: OpenFraction | None = Field(
        None,
        description="A sequence whose geometric-mean ratio is below is rejected; null: no limit.",
    )
    band_high: Annotated[float, Field(gt=1)] | None = Field(
        None,
        description="A sequence whose geometric-mean ratio is above is rejected; null: no limit.",
    )
    veto: OpenFraction | None = Field(
        None,
        description="One token with a ratio below rejects its whole sequence (1e-4 is common); "
        "null: none does.",
    )


class KlConfig(Section):
    """How far the policy may leave the model that the run began with (the reference)."""

    coef: NonNegativeFloat = Field(
        0.0,
        description="Weight of the penalty; 0: off, and no reference model is held. With "
        "`model.lora` none is ever held: the model without its adapters is the reference.",
    )
    estimator: Literal["k1", "k2", "k3"] = Field(
        "k3",
        description="Of KL(policy, reference), from one token, with d = log(reference / policy): "
        "-d, d^2 / 2, or exp(d) - 1 - d.",
    )
    placement: Literal["loss", "reward"] = Field(
        "loss",
        description="`loss` adds it to each token's loss; `reward` takes its sum over a trajectory "
        "off the reward, before advantages. (k1 in the loss has no gradient on average.)",
    )

    @property
    def off_the_reward(self) -> bool:
        return self.coef > 0 and self.placement == "reward"


class OverlongConfig(Section):
    """What becomes of trajectories that run out of tokens or turns (truncated), or nearly do."""

    mode: Literal["keep", "mask", "shape"] = Field(
        "keep",
        description="`keep` trains truncated trajectories as they are; `mask` keeps them out of "
        "gradient and statistics; `shape` trains them, and takes a penalty off the reward of every "
        "trajectory that is nearly too long (DAPO's soft overlong punishment).",
    )
    max_length: PositiveInt | None = Field(
        None, description="`shape`: L_max, sampled tokens at which the penalty is whole."
    )
    cache_length: PositiveInt | None = Field(
        None,
        description="`shape`: L_cache, tokens before it over which the penalty grows; null: a "
        "fifth of `max_length`, as in the paper.",
    )
    penalty: PositiveFloat = Field(1.0, description="`shape`: the whole penalty.")

    @property
    def cache_tokens(self) -> int:
        """``cache_length``, or the paper's share: 4,096 of 20,480."""
        assert self.max_length is not None
        return self.cache_length or max(1, self.max_length // 5)


class AlgorithmConfig(Section):
    group_size: PositiveInt = Field(description="Trajectories of one prompt.")
    groups_per_step: PositiveInt = Field(description="Groups in one training batch.")
    advantage: Literal["group_std", "group_mean", "batch_std", "leave_one_out", "batch_norm"] = (
        Field(
            "group_std",
            description="Reward minus the group's mean, divided by the group's deviation "
            "(`group_std`), the batch's (`batch_std`) or nothing (`group_mean`); minus the mean of "
            "the group's others (`leave_one_out`); minus the batch's mean, divided by its "
            "deviation (`batch_norm`).",
        )
    )
    ratio: Literal["token", "sequence"] = Field(
        "token",
        description="Of probabilities of a token, or the geometric mean of those of a sequence.",
    )
    surrogate: Literal["clip", "cispo", "reinforce"] = Field(
        "clip",
        description="PPO's clipped ratio; the log-probability weighted by the clipped ratio, which "
        "bears no gradient (`cispo`); the log-probability alone (`reinforce`).",
    )
    clip_low: NonNegativeFloat = Field(0.2, description="The ratio is clipped at 1 - clip_low.")
    clip_high: NonNegativeFloat = Field(0.2, description="The ratio is clipped at 1 + clip_high.")
    dual_clip: Annotated[float, Field(gt=1)] | None = Field(
        None,
        description="`clip`: a token of negative advantage counts no more than a ratio of this "
        "(3 is common); null: no limit.",
    )
    aggregation: Literal["token_mean", "sequence_mean", "fixed_length"] = Field(
        "sequence_mean",
        description="Mean over a mini-batch's tokens; mean over its sequences of their tokens' "
        "mean; sum over tokens by its number of sequences times `length_budget`.",
    )
    length_budget: PositiveInt | None = Field(
        None, description="`fixed_length`: tokens that every sequence counts as."
    )
    entropy_coef: NonNegativeFloat = Field(0.0, description="Weight of the entropy bonus.")
    overlong: OverlongConfig = Field(default_factory=OverlongConfig)
    dynamic_sampling: bool = Field(
        False,
        description="Groups whose rewards are all equal are filtered as soon as they are complete, "
        "and others sampled in their place.",
    )
    dynamic_sampling_max_groups: PositiveInt | None = Field(
        None,
        description="After so many of them for one training step, further ones are trained as "
        "they are; null: 10 x `groups_per_step`.",
    )
    kl: KlConfig = Field(default_factory=KlConfig)
    correction: CorrectionConfig = Field(default_factory=CorrectionConfig)

    @property
    def trajectories_per_step(self) -> int:
        return self.group_size * self.groups_per_step


class SchedulerConfig(Section):
    policy: Literal["interval", "timed", "drain", "adaptive"] = Field(
        "interval",
        description="A swap is due when its batches are ready (`interval`), after a time "
        "(`timed`), when nothing is unfinished (`drain`), or when staying in rollout brings less "
        "than the average cycle, as learned (`adaptive`).",
    )
    swap_interval: PositiveInt = Field(1, description="k: training batches per swap.")
    period_s: PositiveFloat | None = Field(
        None, description="`timed`: seconds of rollout after which a swap is due."
    )
    expiry_grace_s: NonNegativeFloat = Field(
        0.0, description="How long a swap may be held for partials that it would expire."
    )
    warmup_swaps: PositiveInt = Field(
        1,
        description="`adaptive`: swaps to be seen before their measured cost is relied upon. Until "
        "then a swap is taken to cost as much time as the rollout has taken so far.",
    )
    hysteresis: Fraction = Field(
        0.05,
        description="`adaptive`: where staying and leaving differ by less than this share of the "
        "average, leaving must be indicated twice in a row.",
    )


class BufferConfig(Section):
    max_staleness: NonNegativeInt = Field(1, description="S: no trained token has a larger lag.")
    max_inflight: PositiveInt | None = Field(
        None, description="Requests at the engine at most; null: max(1, S) x n."
    )
    on_stale: Literal["expire", "restart"] = Field(
        "expire", description="What becomes of trajectories that a swap would make too stale."
    )
    max_filtered_fraction: Fraction = Field(
        0.5,
        description="A larger share of trajectories that are filtered, failed, or called invalid "
        "by their environment ends the run, once it is no accident.",
    )
    replay_groups: NonNegativeInt = Field(
        0,
        description="Trained groups that are kept, to replace groups whose rewards are all equal "
        "(first in, first out); 0: no replay.",
    )
    replay_min_std: NonNegativeFloat = Field(
        0.1, description="A group is kept only if its rewards deviate by more (population's)."
    )
    replay_min_mean: float = Field(
        0.5, description="A group is kept only if its mean reward is above."
    )
    replay_max_staleness: PositiveInt = Field(
        4, description="No replayed token has a larger lag; older groups are forgotten."
    )
    replay_max_uses: PositiveInt = Field(1, description="How often one group is replayed at most.")


class LatencyConfig(Section):
    """How long each environment step takes on top of its own work."""

    kind: Literal["off", "lognormal", "trace"] = Field(
        "off", description="No latency, drawn from a log-normal, or read from a file."
    )
    median_s: PositiveFloat = Field(0.05, description="`lognormal`: half of the steps take less.")
    sigma: NonNegativeFloat = Field(
        1.0, description="`lognormal`: deviation of the logarithm; the tail's weight."
    )
    cap_s: PositiveFloat = Field(60.0, description="No step is made to wait longer.")
    trace: str | None = Field(None, description="`trace`: a text file, one latency in s a line.")


class EnvironmentConfig(Section):
    factory: ImportPath = Field(description="`package.module:name` of the environment class.")
    options: dict[str, Any] = Field(default_factory=dict, description="Its keyword arguments.")
    step_timeout_s: PositiveFloat = Field(
        300.0, description="Deadline of one step; a step that misses it fails its trajectory."
    )
    max_concurrent: PositiveInt | None = Field(
        None,
        description="Resets and steps that go on at once; the others wait, which counts for their "
        "deadline. null: no limit.",
    )
    observation_role: Literal["user", "tool"] = Field(
        "user",
        description="Whose message an observation is, for a model with a chat template, where the "
        "environment does not say.",
    )
    latency: LatencyConfig = Field(default_factory=LatencyConfig)


class MemoryConfig(Section):
    budget_bytes: PositiveInt | None = Field(
        None, description="What engine and trainer may hold together; null: the device."
    )
    host_budget_bytes: PositiveInt | None = Field(
        None,
        description="What all processes of the run may hold of the machine's RAM; null: all of "
        "it, or the limit of the container.",
    )
    margin_bytes: NonNegativeInt = Field(64 * 2**20, description="Kept free of any plan.")
    remedy_after_s: PositiveFloat = Field(
        5.0,
        description="How long a phase waits for memory to come free before it tries the next "
        "remedy: collecting, a deeper sleep, offloading more.",
    )
    sample_interval_s: PositiveFloat = Field(
        0.5, description="Between two readings of the device's memory."
    )
    telemetry_interval_s: PositiveFloat = Field(
        5.0,
        description="Between two readings of what is only shown: GPU load, temperature and power, "
        "proportional set sizes.",
    )


class CheckpointConfig(Section):
    every_steps: NonNegativeInt = Field(0, description="0: only at the end, or on a signal.")
    keep: PositiveInt = Field(2, description="Older checkpoints are deleted.")


class SupervisionConfig(Section):
    start_timeout_s: PositiveFloat = Field(600.0, description="For engine and trainer to start.")
    phase_timeout_s: PositiveFloat = Field(300.0, description="Deadline of each phase of a swap.")
    training_timeout_s: PositiveFloat = Field(3600.0, description="Deadline of a training phase.")
    idle_timeout_s: PositiveFloat = Field(
        600.0, description="A rollout in which nothing happens for so long ends the run."
    )
    grace_s: PositiveFloat = Field(20.0, description="For an orderly end after a signal.")
    max_restarts: NonNegativeInt = Field(
        3,
        description="How often an engine or a trainer that died, or did not answer by its "
        "deadline, is started anew within `restart_window_s` before the run ends; 0: never.",
    )
    restart_window_s: PositiveFloat = Field(
        21600.0, description="The window in which restarts are counted together."
    )


class LoggerConfig(Section):
    display: Literal["auto", "live", "plain", "off"] = Field(
        "auto",
        description="`live` redraws a panel, `plain` prints a line a step; `auto` is "
        "`live` on a terminal, else `plain`.",
    )
    transcripts_per_step: NonNegativeInt = Field(
        4, description="Trajectories of a step that are kept as text."
    )


class DistributionConfig(Section):
    """What a quantity of the simulator is drawn from, each time anew."""

    kind: Literal["constant", "uniform", "exponential", "lognormal", "pareto", "empirical"] = Field(
        "constant", description="Its family; `empirical` draws one of `values`."
    )
    scale: NonNegativeFloat = Field(
        0.0,
        description="`constant`: the value; `uniform`: the largest, from 0; `exponential`: the "
        "mean; `lognormal`: the median; `pareto`: the smallest.",
    )
    shape: PositiveFloat = Field(
        1.0,
        description="`lognormal`: deviation of the logarithm; `pareto`: exponent of the tail (the "
        "mean is infinite up to 1, the variance up to 2).",
    )
    cap: PositiveFloat | None = Field(None, description="Nothing larger is drawn; null: no limit.")
    values: tuple[NonNegativeFloat, ...] = Field(
        (), strict=False, description="`empirical`: what was measured."
    )


class SimEngineConfig(Section):
    """One engine that batches continuously: a pass gives a token to every running sequence."""

    pass_s: PositiveFloat = Field(0.02, description="A decoding pass, whatever it decodes.")
    sequence_s: NonNegativeFloat = Field(1e-4, description="Added for each sequence in the pass.")
    context_token_s: NonNegativeFloat = Field(
        0.0, description="Added for each token of context that the running sequences hold."
    )
    prefill_token_s: NonNegativeFloat = Field(
        2e-5, description="Added for each token of a prompt that the prefix cache lacks."
    )
    request_s: NonNegativeFloat = Field(
        0.0, description="From a request's last token to the driver's knowing it."
    )
    kv_token_bytes: NonNegativeInt = Field(
        0, description="KV cache of one token on one device; 0: the cache is never full."
    )


class SimTrainerConfig(Section):
    step_s: NonNegativeFloat = Field(1.0, description="A training step, whatever it trains.")
    token_s: NonNegativeFloat = Field(
        1e-3, description="Added for each trained token, of one rank alone; ranks share the tokens."
    )


class SimSwapConfig(Section):
    """What the phases take: seconds each, and bytes of one device by bandwidth."""

    start_s: NonNegativeFloat = Field(30.0, description="Starting trainer and engine.")
    park_s: NonNegativeFloat = Field(0.1, description="Aborting what is in flight.")
    sleep_s: NonNegativeFloat = Field(0.5, description="Evicting the engine.")
    load_s: NonNegativeFloat = Field(0.5, description="Loading the trainer.")
    offload_s: NonNegativeFloat = Field(0.5, description="Offloading the trainer.")
    wake_weights_s: NonNegativeFloat = Field(0.3, description="Waking the engine's weights.")
    publish_s: NonNegativeFloat = Field(0.5, description="Publishing weights.")
    wake_kv_s: NonNegativeFloat = Field(0.3, description="Waking the engine's KV cache.")
    verify_s: NonNegativeFloat = Field(
        0.5, description="Comparing the engine with the trainer, where `inference.verify_every` is."
    )
    checkpoint_s: NonNegativeFloat = Field(5.0, description="Writing a checkpoint.")
    close_s: NonNegativeFloat = Field(1.0, description="Closing trainer and engine.")
    host_bandwidth: PositiveFloat = Field(
        25e9, description="Bytes per second between a device and host memory."
    )
    publish_bandwidth: PositiveFloat = Field(
        50e9, description="Bytes per second of published weights."
    )


class SimMemoryConfig(Section):
    """Bytes on one device. Phases take longer by what they move of it."""

    device_bytes: PositiveInt | None = Field(
        None, description="Capacity; null: nothing measures memory, and each swap evicts all."
    )
    weights_bytes: NonNegativeInt = Field(0, description="The engine's weights.")
    kv_bytes: NonNegativeInt = Field(
        0, description="The engine's KV cache, as `inference.kv_cache_memory_bytes`."
    )
    engine_residual_bytes: NonNegativeInt = Field(0, description="What a sleeping engine keeps.")
    parameters_bytes: NonNegativeInt = Field(0, description="The trainer's parameters.")
    gradients_bytes: NonNegativeInt = Field(0, description="The trainer's gradients.")
    optimizer_bytes: NonNegativeInt = Field(0, description="The optimizer's state.")
    activations_bytes: NonNegativeInt = Field(0, description="Of a training step.")
    trainer_residual_bytes: NonNegativeInt = Field(0, description="What an idle trainer keeps.")


class SimEnvironmentConfig(Section):
    """Latencies in seconds; `environment.step_timeout_s` ends what takes longer."""

    reset: DistributionConfig = Field(
        default_factory=DistributionConfig, description="Beginning an episode."
    )
    step: DistributionConfig = Field(
        default_factory=lambda: DistributionConfig(kind="lognormal", scale=1.0),
        description="Answering an action.",
    )
    failure_probability: Fraction = Field(0.0, description="Of a step that breaks.")
    invalid_probability: Fraction = Field(0.0, description="Of a step that calls it all invalid.")


class SimEpisodeConfig(Section):
    """What trajectories look like. Lengths in tokens, rounded, at least 1 where sampled."""

    prompt_tokens: DistributionConfig = Field(
        default_factory=lambda: DistributionConfig(scale=128), description="Before the first turn."
    )
    turn_tokens: DistributionConfig = Field(
        default_factory=lambda: DistributionConfig(kind="lognormal", scale=128),
        description="Sampled in a turn; `rollout.max_new_tokens` cuts it.",
    )
    observation_tokens: DistributionConfig = Field(
        default_factory=lambda: DistributionConfig(scale=32), description="Between turns."
    )
    turns: DistributionConfig = Field(
        default_factory=lambda: DistributionConfig(kind="uniform", scale=4),
        description="Of an episode; `rollout.max_turns` cuts it.",
    )
    reward: DistributionConfig = Field(
        default_factory=lambda: DistributionConfig(kind="uniform", scale=1),
        description="Of an episode. Nothing is learnt in a simulation.",
    )


class SimConfig(Section):
    """The world of `colocate simulate`. A training run does not read it."""

    from_run: str | None = Field(
        None,
        description="Folder of a real run: the run's own overrides come first, and everything "
        "below `trace_fraction` is fitted to its journal.",
    )
    trace_fraction: Fraction = Field(
        1.0,
        description="Share of the prompts' groups whose events journal and trace keep. Only a "
        "journal that keeps all can be replayed.",
    )
    audit: bool = Field(True, description="Check the invariants at every event; slower.")
    engine: SimEngineConfig = Field(default_factory=SimEngineConfig)
    trainer: SimTrainerConfig = Field(default_factory=SimTrainerConfig)
    swap: SimSwapConfig = Field(default_factory=SimSwapConfig)
    memory: SimMemoryConfig = Field(default_factory=SimMemoryConfig)
    environment: SimEnvironmentConfig = Field(default_factory=SimEnvironmentConfig)
    episode: SimEpisodeConfig = Field(default_factory=SimEpisodeConfig)


class RunConfig(Section):
    steps: PositiveInt = Field(description="Training steps; each trains one batch.")
    seed: NonNegativeInt = Field(0, description="Of everything random in the run.")
    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto", description="`auto`: CUDA where there is a GPU and the packages for it."
    )
    resume: str = Field("never", description="`never`, `auto` (newest in this run's folder), PATH.")
    model: ModelConfig
    data: DataConfig
    inference: InferenceConfig
    rollout: RolloutConfig
    trainer: TrainerConfig
    algorithm: AlgorithmConfig
    scheduler: SchedulerConfig
    buffer: BufferConfig
    environment: EnvironmentConfig
    reward: RewardConfig
    memory: MemoryConfig
    checkpoint: CheckpointConfig
    supervision: SupervisionConfig
    logger: LoggerConfig
    sim: SimConfig = Field(default_factory=SimConfig)
