"""What a person sees while a run lasts, at several widths, with and without colours and Unicode."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Callable

import pytest
from rich.cells import cell_len
from rich.console import Console

from colocate.core.phases import SWAP, Phase
from colocate.core.types import MemorySample
from colocate.report.display import LiveDisplay, NoDisplay, PlainDisplay, make_display
from colocate.report.panel import RunPanel, sparkline
from colocate.report.snapshot import RunSnapshot
from colocate.report.timeline import DeviceTimeline
from colocate.report.words import PHASE_WORDS

MakeSnapshot = Callable[..., RunSnapshot]


class Screen:
    """A console whose output is kept, with the encoding and the terminal that a test wants."""

    def __init__(
        self,
        width: int = 80,
        *,
        encoding: str = "utf-8",
        colour: bool = False,
        terminal: bool = True,
    ) -> None:
        self._bytes = io.BytesIO()
        self._file = io.TextIOWrapper(self._bytes, encoding=encoding, write_through=True)
        self.console = Console(
            file=self._file,
            width=width,
            height=30,
            force_terminal=terminal,
            color_system="standard" if colour else None,
            _environ={"TERM": "xterm"},
        )
        self._encoding = encoding

    @property
    def text(self) -> str:
        return self._bytes.getvalue().decode(self._encoding)


def panel(snapshot: RunSnapshot, screen: Screen, timeline: DeviceTimeline | None = None) -> str:
    if timeline is None:
        timeline = DeviceTimeline()
        timeline.enter(Phase.ROLLOUT, snapshot.elapsed_s - 30.0)
        timeline.enter(Phase.TRAINING, snapshot.elapsed_s - 10.0)
    screen.console.print(RunPanel(snapshot, timeline, "colocate quickstart"))
    return screen.text


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_the_panel_fits_and_tells_the_whole_state(
    make_snapshot: MakeSnapshot, width: int, encoding: str
) -> None:
    text = panel(make_snapshot(), Screen(width, encoding=encoding))
    assert all(cell_len(line) <= width for line in text.splitlines())
    flat = " ".join(text.replace("│", " ").replace("|", " ").split())
    for told in (
        "37 of 100",
        "training: DeepSpeed takes a training step",
        "0.634",
        "best 0.660",
        "generating 128",
        "in environment 96",
        "trained 11.8k",
        "expired 3",
        "fresh 91%",
        "1 behind 9%",
        "at most 1 allowed",
        "generated 123.5k",
        "carried over swaps 4,200",
        "800 of 900 MiB",
        "DeepSpeed 500 MiB",
        "37 swaps",
        "2:14 elapsed",
        "about 1:10 left",
    ):
        assert told in flat


def test_the_panel_is_plain_ascii_where_the_terminal_is(make_snapshot: MakeSnapshot) -> None:
    assert panel(make_snapshot(), Screen(encoding="ascii")).isascii()


@pytest.mark.parametrize("phase", list(Phase))
def test_every_phase_is_named_in_words(make_snapshot: MakeSnapshot, phase: Phase) -> None:
    assert PHASE_WORDS[phase] in panel(make_snapshot(phase=phase), Screen(100))


def test_a_run_that_has_only_begun_can_be_shown() -> None:
    text = panel(RunSnapshot(phase=Phase.ROLLOUT, elapsed_s=0.0, step=0, num_steps=5), Screen(80))
    assert "0 of 5" in text
    assert "nothing trained yet" in text
    assert "left" not in text


def test_states_keep_their_places_whatever_is_in_them(make_snapshot: MakeSnapshot) -> None:
    text = panel(make_snapshot(trajectories={"finished": 2, "queued": 1}), Screen(120))
    assert "queued 1 · generating 0 · in environment 0 · finished 2 · in training 0" in text


def test_the_device_bar_shows_who_had_it(make_snapshot: MakeSnapshot) -> None:
    text = panel(make_snapshot(), Screen(80, encoding="ascii"))
    (bar,) = [line for line in text.splitlines() if "| device" in line]
    assert bar.count("R") == pytest.approx(20, abs=1)
    assert bar.count("T") == pytest.approx(10, abs=1)
    assert "R rollout 67%" in text
    assert "T training 33%" in text


def test_colours_halve_the_columns_of_the_device_bar(make_snapshot: MakeSnapshot) -> None:
    timeline = DeviceTimeline(window_s=60.0)
    for second in range(0, 60, 2):
        timeline.enter(Phase.ROLLOUT, second / 2)
        timeline.enter(Phase.TRAINING, (second + 1) / 2)
    text = panel(make_snapshot(elapsed_s=30.0), Screen(80, colour=True), timeline)
    assert "▌" in text


def test_the_timeline_forgets_what_is_older_than_its_window() -> None:
    timeline = DeviceTimeline(window_s=10.0)
    for second in range(10_000):
        timeline.enter(SWAP[second % len(SWAP)], float(second))
    assert len(timeline._changes) <= 11
    assert sum(timeline.shares(10_000.0).values()) == pytest.approx(1.0)


def test_cells_add_up_to_the_shares() -> None:
    timeline = DeviceTimeline(window_s=10.0)
    timeline.enter(Phase.ROLLOUT, 0.0)
    timeline.enter(Phase.PARKING, 6.0)
    timeline.enter(Phase.TRAINING, 8.0)
    assert [str(owner) for owner in timeline.cells(10.0, 10)] == (
        ["rollout"] * 6 + ["swap"] * 2 + ["training"] * 2
    )
    assert timeline.cells(5.0, 2) == [None, "rollout"]
    assert timeline.shares(10.0) == pytest.approx({"rollout": 0.6, "swap": 0.2, "training": 0.2})


def test_a_sparkline_shows_the_last_values_from_low_to_high() -> None:
    assert sparkline([9.0, 0.0, 0.5, 1.0], 3) == "▁▅█"
    assert sparkline([0.3, 0.3], 10) == "▄▄"
    assert sparkline([], 10) == ""
    assert sparkline([1.0], 0) == ""


def test_a_live_display_goes_from_starting_through_the_panel_to_the_ending(
    make_snapshot: MakeSnapshot,
) -> None:
    screen = Screen(80)
    display = make_display("auto", title="colocate quickstart", console=screen.console)
    assert isinstance(display, LiveDisplay)
    display.starting("starting vLLM")
    display.update(make_snapshot())
    display.finished("THE END")
    display.close()
    before, _, after = screen.text.partition("37 of 100")
    assert "starting vLLM" in before
    assert "THE END" in after
    assert "\x1b[?25h" in after  # the cursor is back


def test_a_live_display_gives_the_terminal_back_after_a_failure() -> None:
    screen = Screen(80)
    display = make_display("live", title="run", console=screen.console)
    display.starting("starting vLLM")
    display.close()
    display.close()
    assert screen.text.count("\x1b[?25h") == 1


def test_plain_lines_come_once_a_step_and_once_a_minute_between(
    make_snapshot: MakeSnapshot,
) -> None:
    screen = Screen(40, terminal=False)
    display = make_display("auto", title="run", console=screen.console)
    assert isinstance(display, PlainDisplay)
    display.starting("starting vLLM")
    for elapsed_s in range(0, 200):
        display.update(make_snapshot(step=elapsed_s // 150, elapsed_s=float(elapsed_s)))
    display.finished("THE END")
    lines = screen.text.splitlines()
    assert lines[0] == "run: starting vLLM"
    assert [line[:17] for line in lines[1:3]] == ["training: DeepSpe"] * 2
    assert lines[3] == (
        "step 1/100, reward 0.634, staleness up to 1, 37 swaps, 11.8k trained, 3 expired, "
        "4,200 tokens carried, memory 800 of 900 MiB, 2:30 elapsed, about 1:10 left"
    )
    assert lines[4:] == ["THE END"]
    assert "\x1b" not in screen.text


def test_plain_lines_tell_each_warning_once_and_the_mismatch_of_each_step(
    make_snapshot: MakeSnapshot,
) -> None:
    screen = Screen(40, terminal=False)
    display = make_display("plain", title="run", console=screen.console)
    warnings = ("memory grows", "engines disagree")
    for step, number in ((1, 0), (2, 1), (2, 1), (3, 2), (4, 2)):
        display.update(make_snapshot(step=step, mismatch=2.5e-4, warnings=warnings[:number]))
    lines = screen.text.splitlines()
    assert [line for line in lines if line.startswith("Warning")] == [
        "Warning: memory grows",
        "Warning: engines disagree",
    ]
    steps = [line for line in lines if line.startswith("step")]
    assert len(steps) == 4
    assert all("staleness up to 1, mismatch 2.5e-04, 37 swaps" in line for line in steps)


def test_the_panel_shows_the_mismatch_and_the_last_warning(make_snapshot: MakeSnapshot) -> None:
    text = panel(make_snapshot(mismatch=2.5e-4, warnings=("first", "second")), Screen(80))
    assert "2.5e-04" in text
    assert "second" in text
    assert "first" not in text
    assert "mismatch" not in panel(make_snapshot(), Screen(80))


def test_the_panel_shows_what_swaps_cost(make_snapshot: MakeSnapshot) -> None:
    costs = {"swap_cost_s": 0.42, "mean_swap_cost_s": 1.5, "swap_share": 0.125}
    assert "last 0.42 s · mean 1.50 s · of the time 12%" in panel(
        make_snapshot(**costs), Screen(100)
    )
    assert "swap cost" not in panel(make_snapshot(), Screen(100))


def test_memory_is_a_bar_with_a_part_for_each_tenant(make_snapshot: MakeSnapshot) -> None:
    memory = MemorySample(
        used=600 * 2**20, total=1200 * 2**20, tenants={"engine": 200 * 2**20, "trainer": 2**28}
    )
    text = panel(make_snapshot(memory=memory), Screen(100, encoding="ascii"))
    assert "VVVVVDDDDDD####---------------" in text
    assert "V vLLM 200 MiB  D DeepSpeed 256 MiB  # other 144 MiB" in text
    assert "V" not in panel(make_snapshot(memory=None), Screen(100, encoding="ascii"))


def test_a_dumb_terminal_gets_plain_lines() -> None:
    dumb = Console(file=io.StringIO(), force_terminal=True, _environ={"TERM": "dumb"})
    assert isinstance(make_display("auto", title="run", console=dumb), PlainDisplay)


def test_a_reader_that_goes_away_silences_the_display_and_stops_nothing() -> None:
    script = """
import sys
from colocate.report.display import make_display
display = make_display(sys.argv[1], title="colocate")
display.starting("first")
sys.stdin.readline()
for number in range(1000):
    display.starting(f"then {number}")
display.finished("the end")
display.close()
print("what others print is lost too")
"""
    for mode in ("plain", "live"):
        run = subprocess.Popen(
            [sys.executable, "-c", script, mode],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert run.stdout is not None
        if mode == "plain":
            assert run.stdout.readline() == "colocate: first\n"
        run.stdout.close()
        run.stdout = None
        _, err = run.communicate("\n", timeout=300)
        assert (run.returncode, err) == (0, "")


def test_off_shows_nothing(make_snapshot: MakeSnapshot) -> None:
    screen = Screen()
    display = make_display("off", title="run", console=screen.console)
    assert isinstance(display, NoDisplay)
    display.starting("starting vLLM")
    display.update(make_snapshot())
    display.finished("THE END")
    assert screen.text == ""
