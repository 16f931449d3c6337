"""Whatever is wrong with a command line: exit status 2, one message, nothing written."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from colocate.cli.main import main
from tests.cli.conftest import Outcome

QUICKSTART = "+experiment=quickstart"

# What is wrong, the overrides, and what the message must name: the field and a part of the rule
# or of the remedy.
WRONG: dict[str, tuple[list[str], list[str]]] = {
    "nothing given": ([], ["steps", "model.path", "environment.factory", "required"]),
    "unknown key, near a known one": (
        [QUICKSTART, "buffer.max_stalenes=1"],
        ["buffer.max_stalenes = '1'", "did you mean `buffer.max_staleness`?"],
    ),
    "unknown key, added": ([QUICKSTART, "+typo=1"], ["typo = 1", "no such key"]),
    "unknown key, far from any": (
        [QUICKSTART, "trainer.zzz=1"],
        ["trainer.zzz", "zero_stage, num_ranks"],
    ),
    "unknown section": ([QUICKSTART, "trainr.num_ranks=2"], ["did you mean `trainer.num_ranks`?"]),
    "unknown section, added": ([QUICKSTART, "+zebra.x=1"], ["zebra", "no such key"]),
    "text for an integer": ([QUICKSTART, "trainer.num_ranks=two"], ["trainer.num_ranks = 'two'"]),
    "fraction for an integer": ([QUICKSTART, "steps=1.5"], ["steps = 1.5", "integer"]),
    "boolean for an integer": ([QUICKSTART, "steps=true"], ["steps = True", "integer"]),
    "boolean for a choice of integers": (
        [QUICKSTART, "trainer.zero_stage=true"],
        ["trainer.zero_stage = True"],
    ),
    "null for a number": ([QUICKSTART, "seed=null"], ["seed = None", "integer"]),
    "not a number": ([QUICKSTART, "trainer.learning_rate=nan"], ["learning_rate", "finite"]),
    "below the range": ([QUICKSTART, "steps=0"], ["steps = 0", "greater than or equal to 1"]),
    "negative": ([QUICKSTART, "buffer.max_staleness=-1"], ["buffer.max_staleness = -1"]),
    "above the range": (
        [QUICKSTART, "trainer.betas=[0.9,1.0]"],
        ["trainer.betas.1 = 1.0", "less than 1"],
    ),
    "too few values": ([QUICKSTART, "trainer.betas=[0.9]"], ["trainer.betas"]),
    "not one of the choices": (
        [QUICKSTART, "scheduler.policy=adaptve"],
        ["scheduler.policy = 'adaptve'", "'interval', 'timed', 'drain' or 'adaptive'"],
    ),
    "zero stage 4": ([QUICKSTART, "trainer.zero_stage=4"], ["trainer.zero_stage = 4"]),
    "swap interval above S + 1": (
        [QUICKSTART, "buffer.max_staleness=1", "scheduler.swap_interval=3"],
        ["scheduler.swap_interval = 3", "at most buffer.max_staleness + 1 = 2"],
    ),
    "timed without a period": (
        [QUICKSTART, "scheduler.policy=timed"],
        ["scheduler.period_s", "required by scheduler.policy=timed"],
    ),
    "two models": ([QUICKSTART, "model.path=gpt2"], ["model.path", "exactly one", "both are"]),
    "no model": ([QUICKSTART, "model.embedded=null"], ["model.path", "neither is"]),
    "model folder without config": (
        [QUICKSTART, "model=hf", "model.path=."],
        ["model.path = '.'", "no config.json"],
    ),
    "model folder that is not there": (
        [QUICKSTART, "model=hf", "model.path=./none"],
        ["model.path = './none'", "must be a folder that exists"],
    ),
    "heads that do not divide": (
        [QUICKSTART, "model.embedded.num_key_value_heads=3"],
        ["model.embedded.num_attention_heads", "multiple of num_key_value_heads = 3"],
    ),
    "turn longer than the context": (
        [QUICKSTART, "rollout.max_new_tokens=64"],
        ["rollout.max_new_tokens = 64", "below inference.max_model_len = 64"],
    ),
    "groups of one": ([QUICKSTART, "algorithm.group_size=1"], ["algorithm.group_size = 1"]),
    "greedy groups": ([QUICKSTART, "rollout.temperature=0"], ["rollout.temperature = 0"]),
    "mini-batches that do not divide": (
        [QUICKSTART, "trainer.num_minibatches=3"],
        ["trainer.num_minibatches = 3", "must divide", "320"],
    ),
    "more ranks than trajectories": (
        [QUICKSTART, "trainer.num_minibatches=320", "trainer.num_ranks=2"],
        ["trainer.num_ranks = 2", "must be at most 1"],
    ),
    "more in flight than admitted": (
        [QUICKSTART, "buffer.max_inflight=1000"],
        ["buffer.max_inflight = 1000", "at most 640"],
    ),
    "spares carried beyond the bound": (
        [
            *(QUICKSTART, "rollout.redundant_groups=1", "rollout.spare_groups=carry"),
            "buffer.max_staleness=0",
        ],
        ["rollout.spare_groups = 'carry'", "set rollout.spare_groups=cancel"],
    ),
    "a penalty for length without the length": (
        [QUICKSTART, "algorithm.overlong.mode=shape"],
        ["algorithm.overlong.max_length", "required by algorithm.overlong.mode=shape"],
    ),
    "a penalty for lengths that there are not": (
        [QUICKSTART, "algorithm.overlong.mode=shape", "algorithm.overlong.max_length=100"],
        ["algorithm.overlong.max_length = 100", "below 15"],
    ),
    "cache above the budget": (
        [QUICKSTART, "memory.budget_bytes=1000000"],
        ["inference.kv_cache_memory_bytes", "memory.budget_bytes = 1000000"],
    ),
    "a model that nobody could hold": (
        [QUICKSTART, "model.embedded.num_layers=100000000"],
        ["model.embedded.num_layers = 100000000", "10000"],
    ),
    "weights above the budget": (
        [QUICKSTART, "model.embedded.num_layers=10000"],
        ["inference.kv_cache_memory_bytes", "weights of", "the trainer's state of"],
    ),
    "host budget below what must be held": (
        [QUICKSTART, "memory.host_budget_bytes=1000000"],
        ["memory.host_budget_bytes = 1000000", "the trainer's state", "KV cache"],
    ),
    "buckets above shared memory": (
        [
            *(QUICKSTART, "model.embedded.hidden_size=1000000"),
            "model.embedded.intermediate_size=1000000",
            "trainer.publish_bucket_bytes=1000000000000",
        ],
        ["trainer.publish_bucket_bytes = 1000000000000", "of /dev/shm, which has", "--shm-size"],
    ),
    "sleep that there is not": (
        [QUICKSTART, "inference.sleep=3"],
        ["inference.sleep = 3", "'auto', 0, 'kv', 1 or 2"],
    ),
    "nucleus sampling": (
        [QUICKSTART, "rollout.top_p=0.9"],
        ["rollout.top_p = 0.9", "without a mask"],
    ),
    "top-k sampling": ([QUICKSTART, "rollout.top_k=50"], ["rollout.top_k = 50", "must be null"]),
    "min-p sampling": ([QUICKSTART, "rollout.min_p=0.05"], ["rollout.min_p = 0.05", "must be 0.0"]),
    "engine argument that colocate sets": (
        [QUICKSTART, "+inference.engine_args.gpu_memory_utilization=0.9"],
        ["engine_args.gpu_memory_utilization = 0.9", "set inference.kv_cache_memory_bytes"],
    ),
    "engine argument that vLLM does not know": (
        [QUICKSTART, "+inference.engine_args.max_num_batchd_tokens=64"],
        ["engine_args.max_num_batchd_tokens = 64", "did you mean `max_num_batched_tokens`?"],
    ),
    "engine argument without a plus": (
        [QUICKSTART, "inference.engine_args.block_size=64"],
        ["inference.engine_args.block_size", "+inference.engine_args.block_size=64"],
    ),
    "speculative decoding": (
        [QUICKSTART, "+inference.engine_args.speculative_config={method: ngram}"],
        ["engine_args.speculative_config", "does not reach a draft"],
    ),
    "quantized rollout": (
        [QUICKSTART, "+inference.engine_args={quantization: fp8, kv_cache_dtype: fp8}"],
        ["engine_args.quantization = 'fp8'", "engine_args.kv_cache_dtype = 'fp8'"],
    ),
    "adapters with sleep that may drop them": (
        [QUICKSTART, "+inference.engine_args.enable_lora=true"],
        ["engine_args.enable_lora = True", "inference.sleep=auto"],
    ),
    "pipeline parallelism": (
        [QUICKSTART, "+inference.engine_args.pipeline_parallel_size=2"],
        ["engine_args.pipeline_parallel_size = 2", "use inference.num_engines"],
    ),
    "prompts in pieces on CPU": (
        [QUICKSTART, "device=cpu", "+inference.engine_args.enable_chunked_prefill=true"],
        ["engine_args.enable_chunked_prefill = True", "off on CPU"],
    ),
    "DeepSpeed key that colocate sets": (
        [QUICKSTART, "+trainer.deepspeed.zero_optimization.stage=3"],
        ["trainer.deepspeed.zero_optimization.stage = 3", "set trainer.zero_stage"],
    ),
    "DeepSpeed key that there is not": (
        [QUICKSTART, "+trainer.deepspeed.zero_optimisation.overlap_comm=true"],
        ["trainer.deepspeed.zero_optimisation", "did you mean `zero_optimization`?"],
    ),
    "offload with DeepCompile": (
        [QUICKSTART, "+trainer.deepspeed.compile.deepcompile=true"],
        ["trainer.deepspeed.compile.deepcompile = True", "cannot be offloaded"],
    ),
    "idle before a step may time out": (
        [QUICKSTART, "supervision.idle_timeout_s=10"],
        ["supervision.idle_timeout_s = 10", "environment.step_timeout_s"],
    ),
    "module that is not there": (
        [QUICKSTART, "environment.factory=no_such_module:Game"],
        ["environment.factory", "No module named 'no_such_module'"],
    ),
    "name that is not there": (
        [QUICKSTART, "environment.factory=colocate.embedded.digits:DigitSerch"],
        ["environment.factory", "did you mean colocate.embedded.digits:DigitSearch?"],
    ),
    "something that cannot be called": (
        [QUICKSTART, "data.source=colocate.embedded.digits:QUESTION"],
        ["data.source", "of type str, which cannot be called"],
    ),
    "class that is no environment": (
        [QUICKSTART, "environment.factory=colocate.embedded.digits:DigitPrompts"],
        ["environment.factory", "lacks reset, step, close"],
    ),
    "reward that is not there": (
        [QUICKSTART, "reward=function", "reward.function=math:no"],
        ["reward.function", "math has no `no`"],
    ),
    "options that a verifier does not take": (
        [QUICKSTART, "reward=exact_match", "+reward.options.ignorecase=true"],
        ["reward.options", "unexpected keyword argument 'ignorecase'"],
    ),
    "a key of another choice": (
        [QUICKSTART, "data.path=rows.jsonl"],
        ["data.path = 'rows.jsonl'", "no key of the choice", "as data=NAME"],
    ),
    "data set that is not there": (
        [QUICKSTART, "data=files", "data.path=rows.jsonl"],
        ["data.path = 'rows.jsonl'", "must be a file, a glob of files"],
    ),
    "judge without an address": (
        [QUICKSTART, "reward=judge"],
        ["reward.options.base_url", "reward.options.model", "required"],
    ),
    "rewards not named": (
        [QUICKSTART, "reward=weighted_sum"],
        ["reward.functions", "required"],
    ),
    "format not named": ([QUICKSTART, "reward=format"], ["reward.options.pattern", "required"]),
    "reward not named": ([QUICKSTART, "reward=function"], ["reward.function", "required"]),
    "not an import path": ([QUICKSTART, "data.source=digits"], ["data.source = 'digits'"]),
    "option that is not accepted": (
        [QUICKSTART, "+environment.options.colour=red"],
        ["environment.options", "unexpected keyword argument 'colour'"],
    ),
    "option without a plus": (
        [QUICKSTART, "data.options.shuffle=true"],
        ["data.options.shuffle", "+data.options.shuffle=true"],
    ),
    "trace not named": (
        [QUICKSTART, "environment.latency.kind=trace"],
        ["environment.latency.trace", "none is named"],
    ),
    "trace that is not there": (
        [QUICKSTART, "environment.latency={kind: trace, trace: /none.txt}"],
        ["environment.latency.trace = '/none.txt'", "No such file"],
    ),
    "cap below the median": (
        [QUICKSTART, "environment.latency.cap_s=0.01"],
        ["environment.latency.cap_s = 0.01"],
    ),
    "checkpoint that is not there": ([QUICKSTART, "resume=/none"], ["resume = '/none'"]),
    "unknown experiment": (
        ["+experiment=quikstart"],
        ["experiment = 'quikstart'", "did you mean +experiment=quickstart?"],
    ),
    "experiment without a plus": (["experiment=quickstart"], ["+experiment=quickstart"]),
    "unknown choice of a group": (
        [QUICKSTART, "trainer=zero4"],
        ["trainer = 'zero4'", "the choices are: zero1, zero2, zero3"],
    ),
    "unclosed bracket": ([QUICKSTART, "steps=[1"], ["steps=[1", "Hydra's syntax"]),
    "no equals sign": ([QUICKSTART, "steps"], ["steps", "Hydra's syntax"]),
    "sweep without -m": ([QUICKSTART, "seed=1,2"], ["seed = '1,2'", "--multirun"]),
    "unknown key of Hydra": ([QUICKSTART, "hydra.run.dirr=x"], ["hydra.run.dirr"]),
    "unknown sweeper": ([QUICKSTART, "hydra/sweeper=optuna"], ["hydra/sweeper = 'optuna'"]),
    "folder that cannot be resolved": (
        [QUICKSTART, "hydra.run.dir=${nope}"],
        ["hydra.run.dir", "'nope' not found"],
    ),
    "value that cannot be resolved": ([QUICKSTART, "seed=${nope}"], ["seed", "'nope' not found"]),
    "folder that cannot be made": (
        [QUICKSTART, "hydra.run.dir=/dev/null/run"],
        ["hydra.run.dir = '/dev/null/run'", "/dev/null is not a folder"],
    ),
    "no .hydra": ([QUICKSTART, "hydra.output_subdir=null"], ["hydra.output_subdir"]),
    "config folder that is not there": (
        ["--config-dir", "none", QUICKSTART],
        ["--config-dir = 'none'", "must be a folder"],
    ),
    "rerun that skips validation": (
        ["--experimental-rerun", "x.pickle"],
        ["--experimental-rerun", "without validating"],
    ),
    "second job of a multirun": (
        ["-m", QUICKSTART, "scheduler.swap_interval=1,9"],
        ["scheduler.swap_interval = 9", "job 1 (scheduler.swap_interval=9)"],
    ),
    "choice in a multirun": (
        ["-m", QUICKSTART, "trainer=zero1,zero9"],
        ["trainer = 'zero9'", "job 1 (trainer=zero9)"],
    ),
    "jobs that share a folder": (
        ["-m", QUICKSTART, "seed=1,2", "hydra.sweep.subdir=same"],
        ["hydra.sweep.subdir", "must differ between jobs"],
    ),
    "a random sweep": (
        ["-m", QUICKSTART, "trainer.learning_rate=interval(0,1)"],
        ["BasicSweeper does not support sweep type"],
    ),
}


@pytest.mark.parametrize(("overrides", "named"), WRONG.values(), ids=WRONG.keys())
def test_a_wrong_configuration_is_refused_with_one_message_and_nothing_written(
    overrides: list[str],
    named: list[str],
    colocate: Callable[[Sequence[str]], Outcome],
    empty_folder: Path,
) -> None:
    outcome = colocate(["train", *overrides])

    assert outcome.status == 2
    words = " ".join(outcome.err.split())
    for part in named:
        assert part in words
    assert outcome.err.count("colocate: wrong configuration") == 1
    assert "remedy" in outcome.err
    assert "Traceback" not in outcome.err
    assert outcome.out == ""
    assert list(empty_folder.iterdir()) == []


def test_all_problems_are_reported_together(
    colocate: Callable[[Sequence[str]], Outcome],
) -> None:
    outcome = colocate(
        [
            "train",
            QUICKSTART,
            "trainer=zero9",
            "buffer.max_stalenes=1",
            "steps=[1",
            "seed=-1",
            "scheduler.swap_interval=4",
            "environment.factory=no_such_module:Game",
        ]
    )

    assert outcome.status == 2
    assert "6 problems" in outcome.err
    for field in (
        "trainer = 'zero9'",
        "buffer.max_stalenes = '1'",
        "steps=[1",
        "seed = -1",
        "scheduler.swap_interval = 4",
        "environment.factory",
    ):
        assert field in outcome.err


def test_what_swaps_cannot_work_with_is_reported_together_before_anything_starts(
    colocate: Callable[[Sequence[str]], Outcome], empty_folder: Path
) -> None:
    outcome = colocate(
        [
            "train",
            QUICKSTART,
            "device=cpu",
            "rollout.top_p=0.9",
            "memory.budget_bytes=1000000",
            "+inference.engine_args={enable_lora: true, speculative_config: {method: ngram}}",
            "+trainer.deepspeed.compile.deepcompile=true",
        ]
    )

    assert outcome.status == 2
    assert "5 problems" in outcome.err
    for field in (
        "rollout.top_p",
        "inference.kv_cache_memory_bytes",
        "inference.engine_args.enable_lora",
        "inference.engine_args.speculative_config",
        "trainer.deepspeed.compile.deepcompile",
    ):
        assert f". {field} = " in outcome.err
    assert list(empty_folder.iterdir()) == []


def test_a_rule_is_skipped_where_one_of_its_fields_is_wrong_already(
    colocate: Callable[[Sequence[str]], Outcome],
) -> None:
    outcome = colocate(["train", QUICKSTART, "buffer.max_staleness=x", "scheduler.swap_interval=9"])

    assert "1 problem;" in outcome.err
    assert "scheduler.swap_interval" not in outcome.err


def test_a_failed_choice_does_not_drag_its_missing_values_along(
    colocate: Callable[[Sequence[str]], Outcome],
) -> None:
    outcome = colocate(["train", "+experiment=quikstart"])

    assert "1 problem;" in outcome.err


def test_a_folder_that_holds_a_run_is_not_written_over(
    colocate: Callable[[Sequence[str]], Outcome], empty_folder: Path
) -> None:
    (empty_folder / "old").mkdir()
    (empty_folder / "old" / "events.jsonl").touch()

    outcome = colocate(["train", QUICKSTART, "hydra.run.dir=old"])

    assert outcome.status == 2
    assert "must not hold a run already" in outcome.err


def test_an_unknown_flag_is_refused(
    colocate: Callable[[Sequence[str]], Outcome], empty_folder: Path
) -> None:
    outcome = colocate(["train", "--dry-run", QUICKSTART])

    assert outcome.status == 2
    assert "--dry-run" in outcome.err
    assert list(empty_folder.iterdir()) == []


@pytest.mark.parametrize("text", ["0.1\nfast\n", "0.1\n-1\n", "inf\n", "\n"])
def test_a_latency_trace_that_cannot_be_used_is_refused(
    text: str, colocate: Callable[[Sequence[str]], Outcome], tmp_path: Path
) -> None:
    trace = tmp_path / "trace.txt"
    trace.write_text(text, encoding="utf-8")

    outcome = colocate(
        ["train", QUICKSTART, f"environment.latency={{kind: trace, trace: {trace}}}"]
    )

    assert outcome.status == 2
    assert "environment.latency.trace" in outcome.err


def test_a_module_that_fails_while_it_is_imported_is_reported_with_its_error(
    colocate: Callable[[Sequence[str]], Outcome],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "broken_game.py").write_text("1 / 0\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)

    outcome = colocate(["train", QUICKSTART, "environment.factory=broken_game:Game"])

    assert outcome.status == 2
    assert "importing broken_game raised ZeroDivisionError" in " ".join(outcome.err.split())


@pytest.mark.parametrize("name", ["swap interval above S + 1", "unclosed bracket"])
def test_the_console_script_refuses_alike(name: str, tmp_path: Path) -> None:
    overrides, named = WRONG[name]

    done = subprocess.run(
        [str(Path(sys.executable).parent / "colocate"), "train", *overrides],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 2
    for part in named:
        assert part in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["fly"], "train, simulate, report, watch, export, chat, replay, doctor"),
        (["replay"], "takes one argument"),
        (["replay", "no/such/folder"], "no/such/folder"),
        (["doctor", "now"], "takes no arguments"),
    ],
)
def test_a_wrong_command_is_refused(
    arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert named in capsys.readouterr().err
