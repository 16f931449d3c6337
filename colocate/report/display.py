"""Shows a run while it lasts: a live panel on a terminal, lines elsewhere."""

from __future__ import annotations

import os
import time
from typing import Literal, Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from colocate.report.panel import RunPanel
from colocate.report.snapshot import RunSnapshot
from colocate.report.timeline import DeviceTimeline
from colocate.report.words import PHASE_WORDS, count, duration, evaluation_words, size_of

# Drawing takes some 10 ms of a core that the run itself could use.
_REFRESHES_PER_S = 2
_HEARTBEAT_S = 60.0


class ForgivingConsole(Console):
    """Falls silent where nobody reads its pipe any more (``| head``); rich's own exits instead."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        # What standard output still buffers would break again at the interpreter's exit.
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, self.file.fileno())
        os.close(devnull)


class RunDisplay(Protocol):
    """Fed by the driver. Every method returns at once and may be called at any rate."""

    def starting(self, what: str) -> None:
        """Says what start-up is about, as in ``"starting vLLM"``."""

    def update(self, snapshot: RunSnapshot) -> None:
        """Takes the newest picture. Call it at each change of phase, and now and then between."""

    def finished(self, ending: RenderableType) -> None:
        """Ends the display with the ending shown. Nothing may follow but ``close``."""

    def close(self) -> None:
        """Gives the terminal back, whatever happened. Safe to call twice."""


class LiveDisplay:
    """A panel that is redrawn in place, twice a second, from a thread."""

    def __init__(self, console: Console, title: str) -> None:
        self._console = console
        self._title = title
        self._timeline = DeviceTimeline()
        self._snapshot: RunSnapshot | None = None
        self._spinner = Spinner("line")
        self._what = "starting"
        self._begun_s = time.monotonic()
        self._live = Live(
            console=console,
            get_renderable=self._render,
            refresh_per_second=_REFRESHES_PER_S,
            transient=False,
        )

    def starting(self, what: str) -> None:
        self._what = what
        self._start()

    def update(self, snapshot: RunSnapshot) -> None:
        self._timeline.enter(snapshot.phase, snapshot.elapsed_s)
        self._snapshot = snapshot
        self._start()

    def finished(self, ending: RenderableType) -> None:
        self.close()
        self._console.print(ending)

    def close(self) -> None:
        if self._live.is_started:
            self._live.stop()

    def _start(self) -> None:
        if not self._live.is_started:
            self._live.start(refresh=True)

    def _render(self) -> RenderableType:
        if self._snapshot is None:
            elapsed = duration(time.monotonic() - self._begun_s)
            self._spinner.update(text=Text(f"{self._what}  {elapsed}"))
            return Group(Text(self._title, style="bold"), self._spinner)
        return RunPanel(self._snapshot, self._timeline, self._title)


class PlainDisplay:
    """One line for each training step and each warning; one a minute where a step takes longer."""

    def __init__(self, console: Console, title: str) -> None:
        self._console = console
        self._title = title
        self._step = 0
        self._said_s = 0.0
        self._num_warnings = 0
        self._evaluated: float | None = None

    def starting(self, what: str) -> None:
        self._say(f"{self._title}: {what}")

    def update(self, snapshot: RunSnapshot) -> None:
        for warning in snapshot.warnings[self._num_warnings :]:
            self._say(f"Warning: {warning}")
        self._num_warnings = len(snapshot.warnings)
        if snapshot.evaluation and snapshot.evaluation["step"] != self._evaluated:
            self._evaluated = snapshot.evaluation["step"]
            words = evaluation_words(snapshot.evaluation)
            self._say(f"evaluation after step {self._evaluated:g}: {words}")
        if snapshot.step != self._step:
            self._step = snapshot.step
            line = step_line(snapshot)
        elif snapshot.elapsed_s - self._said_s >= _HEARTBEAT_S:
            line = f"{PHASE_WORDS[snapshot.phase]} (step {snapshot.step + 1}, {_time(snapshot)})"
        else:
            return
        self._said_s = snapshot.elapsed_s
        self._say(line)

    def finished(self, ending: RenderableType) -> None:
        self._console.print(ending)

    def close(self) -> None:
        return

    def _say(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)


class NoDisplay:
    """Shows nothing."""

    def starting(self, what: str) -> None:
        return

    def update(self, snapshot: RunSnapshot) -> None:
        return

    def finished(self, ending: RenderableType) -> None:
        return

    def close(self) -> None:
        return


def make_display(
    mode: Literal["auto", "live", "plain", "off"], *, title: str, console: Console | None = None
) -> RunDisplay:
    """The display that `logger.display` asks for; ``auto`` is live exactly on a capable terminal.

    Args:
        mode: `logger.display`.
        title: Names the run.
        console: Where to; standard output unless given.
    """
    console = console or ForgivingConsole()
    if mode == "off":
        return NoDisplay()
    if mode == "auto":
        capable = console.is_terminal and not console.is_dumb_terminal
        mode = "live" if capable else "plain"
    return LiveDisplay(console, title) if mode == "live" else PlainDisplay(console, title)


def step_line(snapshot: RunSnapshot) -> str:
    """A training step in one line, for logs. The fields' order does not change."""
    parts = [f"step {snapshot.step}/{snapshot.num_steps}"]
    if snapshot.reward is not None:
        parts.append(f"reward {snapshot.reward:.3f}")
    if snapshot.staleness:
        parts.append(f"staleness up to {max(snapshot.staleness)}")
    if snapshot.mismatch is not None:
        parts.append(f"mismatch {snapshot.mismatch:.1e}")
    parts += [
        f"{snapshot.num_swaps} swaps",
        f"{count(snapshot.endings.get('trained', 0))} trained",
        f"{count(snapshot.endings.get('expired', 0))} expired",
        f"{count(snapshot.tokens_carried)} tokens carried",
    ]
    if snapshot.memory is not None:
        parts.append(f"memory {size_of(snapshot.memory.used, snapshot.memory.total)}")
    return ", ".join([*parts, _time(snapshot)])


def _time(snapshot: RunSnapshot) -> str:
    elapsed = f"{duration(snapshot.elapsed_s)} elapsed"
    if snapshot.eta_s is None or snapshot.step >= snapshot.num_steps:
        return elapsed
    return f"{elapsed}, about {duration(snapshot.eta_s)} left"
