"""An independent check of the invariants, from the journal's events and actions alone.

It shares no state and no bookkeeping with the scheduler: it counts again, by other means, and
says where the two would differ. The invariants are those of ``docs/architecture.md``.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from colocate.core import actions as act
from colocate.core import events as ev
from colocate.core.audit_evaluation import EvaluationAuditor
from colocate.core.audit_memory import MemoryAuditor
from colocate.core.audit_replay import ReplayAuditor, Trained
from colocate.core.audit_resumption import Life, ResumptionAuditor
from colocate.core.audit_rollback import Line, RollbackAuditor
from colocate.core.phases import Phase
from colocate.core.settings import Settings
from colocate.core.types import Ending, FinishReason, GroupId, TrajectoryId


@dataclass(frozen=True, slots=True)
class Violation:
    """``seq`` is the number of the journal's line."""

    seq: int
    invariant: str
    message: str


class Auditor:
    """Feed it every line in order; then ``finish``."""

    def __init__(self) -> None:
        self.violations: list[Violation] = []
        self.num_events = 0
        self.num_batches = 0
        self._lives: dict[TrajectoryId, Life] = {}
        self._admitted: defaultdict[GroupId, list[TrajectoryId]] = defaultdict(list)
        self._settings: Settings | None = None
        self._trainer_version = 0
        self._engine_version = 0
        self._inflight: dict[str, TrajectoryId] = {}
        self._training: act.Train | None = None
        self._may_submit = False
        self._may_generate = False
        self._memory = MemoryAuditor()
        self._evaluations = EvaluationAuditor()
        self._replays = ReplayAuditor()
        self._resumption = ResumptionAuditor()
        self._rollback = RollbackAuditor()
        self._incarnation = 0
        self._awaits_weights = False
        self._masked_slots: Counter[GroupId] = Counter()
        self._living: Counter[GroupId] = Counter()
        self._passed_over: set[GroupId] = set()
        self._lags: Counter[int] = Counter()

    @property
    def num_trajectories(self) -> int:
        return len(self._lives)

    def counts(self) -> dict[str, int]:
        """Trajectories by how they ended, as ``summary.json`` names them."""
        endings = Counter(life.ending for life in self._lives.values())
        return {
            "admitted": len(self._lives),
            **{str(e): endings[e] for e in Ending},
            "resident": endings[None],
        }

    def histogram(self) -> dict[str, int]:
        """Trained tokens by lag."""
        return {str(lag): count for lag, count in sorted(self._lags.items())}

    def feed(self, event: ev.Event, actions: Sequence[act.Action]) -> None:
        if isinstance(event, ev.PortEvent) and event.incarnation != self._incarnation:
            if actions:
                self._report("exactly once", f"{type(event).__name__} of a lost process was used")
            self.num_events += 1
            return
        self._check_event(event)
        self._memory.see_event(event)
        for finding in self._evaluations.check_event(event):
            self._report(*finding)
        self._rollback.see_event(event)
        for action in actions:
            self._check_action(action)
            for finding in self._evaluations.check_action(action, self._engine_version):
                self._report(*finding)
            for message in self._memory.check_action(action):
                self._report("exclusion", message)
            for message in self._resumption.check_action(action):
                self._report("conservation", message)
        for message in self._resumption.check_line():
            self._report("conservation", message)
        self._check_limits()
        for finding in self._replays.check_kept():
            self._report(*finding)
        if self._rollback.is_to_be_kept(event, actions):
            self._rollback.keep(event, self._line().copy())
        self.num_events += 1

    # Going back

    def _line(self) -> Line:
        """What is known of the surviving line."""
        return Line(
            lives=self._lives,
            admitted=self._admitted,
            masked_slots=self._masked_slots,
            living=self._living,
            passed_over=self._passed_over,
            lags=self._lags,
            num_batches=self.num_batches,
            version=self._trainer_version,
            replays=self._replays,
        )

    def _roll_back(self, action: act.RollBack) -> None:
        line = self._rollback.go_back(action)
        if line is None:
            self._report("exactly once", f"there is no version {action.version} to go back to")
            return
        for message in self._rollback.check(action, self._lives):
            self._report("conservation", message)
        self._lives = line.lives
        self._admitted = defaultdict(list, line.admitted)
        self._masked_slots, self._living = line.masked_slots, line.living
        self._passed_over, self._lags = line.passed_over, line.lags
        self.num_batches, self._replays = line.num_batches, line.replays
        self._trainer_version = self._engine_version = line.version
        self._incarnation = action.incarnation
        self._awaits_weights = True
        self._inflight.clear()
        self._training = None
        self._may_submit = self._may_generate = False
        for life in self._lives.values():
            if life.ending is None:
                life.attempt = action.attempt
        self._resumption.expect(self._lives)

    def _report(self, invariant: str, message: str) -> None:
        self.violations.append(Violation(self.num_events, invariant, message))

    # Events

    def _check_event(self, event: ev.Event) -> None:
        match event:
            case ev.RunStarted():
                self._settings = event.settings
                self._replays.start(event.settings)
                self._trainer_version = self._engine_version = event.version
            case ev.Restored():
                self._restored(event)
            case ev.EpisodeResumed():
                if life := self._live(event.trajectory, event.attempt):
                    self._check_base(event.trajectory, life, event.base)
            case ev.PhaseEnded():
                self._phase_ended(event)
            case ev.TurnReady() | ev.TrajectoryFinished():
                life = self._live(event.trajectory, event.attempt)
                if life is not None:
                    self._check_base(event.trajectory, life, event.base)
                    self._take_in(event, life)
            case ev.RequestEnded():
                self._request_ended(event)
            case ev.BatchTrained():
                self._batch_trained(event)
            case _:
                pass

    def _restored(self, event: ev.Restored) -> None:
        """What the checkpoint held is this life's, unless it is given up."""
        residents = event.buffer.residents
        for record in residents.trajectories:
            self._masked_slots[record.group] += record.ending is Ending.MASKED
        for trajectory, life in self._resumption.restore(residents).items():
            self._lives[trajectory] = life
            self._admitted[life.group].append(trajectory)
            self._living[life.group] += 1
        self._replays.restore(event.buffer.replays)

    def _given_up(self, action: act.GiveUpGroup) -> None:
        members = {t for t, life in self._lives.items() if life.group == action.group}
        if members != {*action.trajectories}:
            self._report("conservation", f"group {action.group} was not given up as a whole")
        for trajectory in members:
            del self._lives[trajectory]
        for of_groups in (self._admitted, self._living, self._masked_slots):
            of_groups.pop(action.group, None)

    def _live(self, trajectory: TrajectoryId, attempt: int) -> Life | None:
        life = self._lives.get(trajectory)
        if life is None:
            if not self._rollback.is_known(trajectory):
                self._report("conservation", f"trajectory {trajectory} was never admitted")
            return None
        return life if life.ending is None and life.attempt == attempt else None

    def _take_in(self, event: ev.TurnReady | ev.TrajectoryFinished, life: Life) -> None:
        if isinstance(event, ev.TurnReady):
            life.digest = event.digest
            return
        if life.finished:
            self._report("conservation", f"trajectory {event.trajectory} finished twice")
        life.finished = not event.masked
        life.reward = event.reward

    def _check_base(self, trajectory: TrajectoryId, life: Life, base: str) -> None:
        if base != life.digest:
            self._report(
                "fidelity", f"trajectory {trajectory} was {life.digest}, and goes on from {base}"
            )

    def _request_ended(self, event: ev.RequestEnded) -> None:
        owner = self._inflight.pop(event.request, None)
        life = self._live(event.trajectory, event.attempt)
        if life is None:
            return  # given up: what it brings is not used, and no digest changes
        if owner != event.trajectory:
            self._report("exactly once", f"request {event.request} was not in flight")
        self._check_base(event.trajectory, life, event.base)
        life.digest = event.digest
        for span in event.spans:
            life.versions[span.version] += span.length
            if span.version != self._engine_version:
                self._report(
                    "fidelity",
                    f"request {event.request} has tokens of version {span.version} while the "
                    f"engine is at {self._engine_version}",
                )
        if not self._may_generate and (
            event.spans or event.finish_reason is not FinishReason.ABORT
        ):
            self._report("exclusion", f"request {event.request} generated during a swap")

    def _phase_ended(self, event: ev.PhaseEnded) -> None:
        if event.phase is Phase.PUBLISHING and event.version is not None:
            if event.version != self._trainer_version:
                self._report(
                    "exactly once",
                    f"version {event.version} was published; the trainer is at "
                    f"{self._trainer_version}",
                )
            self._engine_version = event.version
            self._awaits_weights = False
        begins = event.phase is Phase.STARTING and not self._incarnation
        is_fresh = begins and self._engine_version == 0
        if event.phase is Phase.KV_WAKING or is_fresh:
            self._may_submit = self._may_generate = True

    def _batch_trained(self, event: ev.BatchTrained) -> None:
        lease, self._training = self._training, None
        if lease is None or lease.batch != event.batch:
            self._report("exactly once", f"batch {event.batch} was acknowledged but not leased")
            return
        if event.version != self._trainer_version + 1:
            self._report(
                "exactly once",
                f"batch {event.batch} took version {self._trainer_version} to {event.version}",
            )
        for trajectory in lease.trajectories:
            for version, count in self._lives[trajectory].versions.items():
                self._lags[lease.version - version] += count
        self._trainer_version = event.version
        self.num_batches += 1
        lives = [self._lives[t] for t in lease.trajectories if t in self._lives]
        replayed = self._replays.members(lease)
        known = (*(life.digest for life in lives), *(member.digest for member in replayed))
        if event.digests != known:
            self._report("fidelity", f"batch {event.batch} trained other content than was leased")
        num_tokens = sum(sum(life.versions.values()) for life in lives)
        if event.num_tokens != num_tokens + sum(member.num_tokens for member in replayed):
            self._report("fidelity", f"batch {event.batch} trained {event.num_tokens} tokens")
        self._replays.acknowledge(lease)

    # Actions

    def _check_action(self, action: act.Action) -> None:
        match action:
            case act.StartTrajectory():
                self._started(action)
            case act.SubmitEvaluation() if not self._may_submit:
                self._report("exclusion", f"request {action.request} passed a closed gate")
            case act.SubmitRequest():
                if not self._may_submit:
                    self._report("exclusion", f"request {action.request} passed a closed gate")
                if self._awaits_weights:
                    self._report("exclusion", f"request {action.request} met no version's weights")
                if action.request in self._inflight:
                    self._report("exactly once", f"request {action.request} was made twice")
                self._inflight[action.request] = action.trajectory
            case act.EndTrajectory():
                self._ended(action)
            case act.GiveUpGroup():
                self._given_up(action)
            case act.ForgetContent():
                for finding in self._replays.forget(action):
                    self._report(*finding)
            case act.Park():
                self._may_submit = False
            case act.StartEngine():
                # Requests in flight come back as aborted before anything else happens.
                self._may_submit = False
                self._awaits_weights = True
                self._incarnation = action.incarnation
            case act.RollBack():
                self._roll_back(action)
            case act.Sleep() | act.LoadTrainer() | act.WakeWeights() | act.Publish():
                self._close_gate()
            case act.Train():
                self._close_gate()
                self._leased(action)
            case _:
                pass

    def _close_gate(self) -> None:
        self._may_submit = self._may_generate = False
        if self._inflight:
            self._report("exclusion", f"requests in flight after parking: {[*self._inflight][:5]}")

    def _started(self, action: act.StartTrajectory) -> None:
        known = self._lives.get(action.trajectory)
        if action.attempt == 0:
            if known is not None or self._rollback.is_known(action.trajectory):
                self._report("conservation", f"trajectory {action.trajectory} admitted twice")
            self._admitted[action.group].append(action.trajectory)
            self._lives[action.trajectory] = Life(group=action.group)
            self._living[action.group] += 1
            self._check_admission(action.group)
        elif known is None or known.ending or known.trained_in is not None:
            self._report("conservation", f"trajectory {action.trajectory} cannot begin again")
        else:
            self._lives[action.trajectory] = Life(group=action.group, attempt=action.attempt)

    def _ended(self, action: act.EndTrajectory) -> None:
        life = self._lives.get(action.trajectory)
        if life is None or life.ending is not None:
            self._report(
                "conservation", f"trajectory {action.trajectory} ended twice, or never was"
            )
            return
        life.ending = action.ending
        self._living[life.group] -= 1
        if not self._living[life.group]:
            del self._living[life.group]
        # What an ended trajectory still had at the engine is given up; nobody waits for it.
        for request in [r for r, t in self._inflight.items() if t == action.trajectory]:
            del self._inflight[request]
        if action.ending is Ending.CANCELLED:
            self._check_cancelled(action.trajectory, life)
        self._masked_slots[life.group] += action.ending is Ending.MASKED
        if (action.ending is Ending.TRAINED) != (life.trained_in is not None):
            self._report(
                "exactly once",
                f"trajectory {action.trajectory} ended as {action.ending}, and its batch is "
                f"{life.trained_in}",
            )
        if action.ending is Ending.FILTERED and life.finished:
            self._check_flat(life.group)
        if action.keeps_content and life.trained_in is not None:
            trained = Trained(
                group=life.group,
                origin=life.trained_in,
                reward=life.reward,
                digest=life.digest,
                versions=life.versions,
            )
            self._replays.keep(action.trajectory, trained)

    def _check_flat(self, group: GroupId) -> None:
        """What has finished is filtered only with its whole group, and only if that is flat."""
        lives = [self._lives[t] for t in self._admitted[group]]
        rewards = {
            life.reward for life in lives if life.finished and life.ending is not Ending.MASKED
        }
        if len(rewards) > 1:
            self._report("groups", f"group {group} is filtered with rewards of {rewards}")

    def _check_admission(self, group: GroupId) -> None:
        settings = self._settings
        assert settings is not None
        if self._living[group] > settings.group_size + settings.redundant_per_group:
            self._report("groups", f"group {group} has {self._living[group]} members at a time")
        spares = settings.redundant_groups * settings.group_size
        spares += settings.redundant_per_group * len(self._living)
        if self._living.total() > settings.max_resident + spares:
            self._report("bound", f"{self._living.total()} trajectories are resident")

    def _check_cancelled(self, trajectory: TrajectoryId, life: Life) -> None:
        settings = self._settings
        assert settings is not None
        if not (settings.redundant_per_group or settings.redundant_groups):
            self._report("groups", f"trajectory {trajectory} was cancelled, and is no spare")
        if life.finished:
            self._passed_over.add(life.group)

    def _leased(self, action: act.Train) -> None:
        assert self._settings is not None
        self._training = action
        if action.version != self._trainer_version:
            self._report("exactly once", f"batch {action.batch} begins at a version that is not")
        for trajectory in action.trajectories:
            life = self._lives.get(trajectory)
            if life is None or life.ending or life.trained_in is not None or not life.finished:
                self._report("exactly once", f"trajectory {trajectory} cannot be trained (again)")
                continue
            life.trained_in = action.batch
            for version in life.versions:
                lag = self._trainer_version - version
                if not 0 <= lag <= self._settings.max_staleness:
                    self._report("bound", f"trajectory {trajectory} has tokens {lag} behind")
        own = {self._lives[t].group for t in action.trajectories if t in self._lives}
        for finding in self._replays.lease(action, own, self._trainer_version):
            self._report(*finding)
        self._check_groups(action)

    def _check_groups(self, action: act.Train) -> None:
        assert self._settings is not None
        lives = [self._lives[t] for t in action.trajectories if t in self._lives]
        if not action.replays and not any(life.versions.total() for life in lives):
            self._report("groups", f"batch {action.batch} has no trainable token")
        sizes = Counter(life.group for life in lives)
        for group in self._passed_over & sizes.keys():
            self._report("groups", f"group {group} is trained without one that finished earlier")
        for group, size in sizes.items():
            if size + self._masked_slots[group] != self._settings.group_size:
                self._report("groups", f"group {group} is trained with {size} members")
        num_groups = len(sizes) + len(action.replays)
        if num_groups != self._settings.groups_per_step:
            self._report("groups", f"batch {action.batch} has {num_groups} groups")

    def _check_limits(self) -> None:
        settings = self._settings
        num_inflight = len(self._inflight) + self._evaluations.num_inflight
        if settings is not None and num_inflight > settings.max_requests:
            self._report("bound", f"{num_inflight} requests in flight")

    def check_summary(self, summary: dict[str, Any]) -> None:
        """Compares with what the run itself wrote at its end."""
        stated = {k: v for k, v in summary["trajectories"].items() if k != "replayed"}
        if stated != self.counts():
            self._report("conservation", f"summary.json says {stated}, counted {self.counts()}")
        stated_replay = {**summary["replay"], "replayed": summary["trajectories"]["replayed"]}
        replayed = {**self._replays.summary(), "replayed": self._replays.replayed}
        if stated_replay != replayed:
            self._report("bound", f"summary.json says {stated_replay}, counted {replayed}")
        if summary["staleness"]["histogram"] != self.histogram():
            self._report("bound", "summary.json has another staleness histogram")
        for finding in self._evaluations.check_summary(summary.get("eval")):
            self._report(*finding)
        if summary["steps"] != self.num_batches:
            self._report("exactly once", f"summary.json says {summary['steps']} steps")
