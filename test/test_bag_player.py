"""The player sends messages at their recorded times, and time stands still while it is paused.

The clock is a stand-in that the player itself moves on by waiting, so that no test measures time.
"""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from bag_files import PERIOD_NS, START_NS, write_folder

from flashrt_ros.bag.message import Message
from flashrt_ros.bag.player import Played, Player
from flashrt_ros.bag.reader import BagReader
from flashrt_ros.errors import InvalidArgumentError

PERIOD_S = PERIOD_NS / 1e9


class Stage:
    """Clock, waiting and sink in one; ``act`` is called before each message is taken."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.sent: list[tuple[float, Message]] = []
        self.times: list[int] = []
        self.on_wait: Callable[[float | None], None] = lambda seconds: None
        self.on_publish: Callable[[], None] = lambda: None

    def now(self) -> float:
        return self.now_s

    def wait(self, condition: threading.Condition, seconds: float | None) -> None:
        self.now_s += seconds or 0.0
        self.on_wait(seconds)

    def publish(self, message: Message) -> None:
        self.sent.append((self.now_s, message))
        self.on_publish()

    def tell_time(self, time_ns: int) -> None:
        self.times.append(time_ns)


def play(folder: Path, stage: Stage, **options: object) -> tuple[Player, Callable[[], Played]]:
    reader = BagReader(folder)
    player = Player(reader, stage, now=stage.now, wait=stage.wait, **options)  # type: ignore[arg-type]
    return player, player.run


@pytest.mark.parametrize("rate", [0.5, 1.0, 4.0])
def test_messages_leave_at_their_times(tmp_path: Path, rate: float) -> None:
    stage = Stage()
    _, run = play(write_folder(tmp_path / "bag"), stage, rate=rate, topics={"/joints"})
    played = run()
    assert (played.messages, played.loops) == (20, 1)
    for index, (sent_s, message) in enumerate(stage.sent):
        assert message.time_ns == START_NS + index * PERIOD_NS
        assert sent_s == pytest.approx(100.0 + index * PERIOD_S / rate, abs=1e-6)
    assert played.latest_ms == pytest.approx(0.0, abs=1e-3)


def test_a_pause_shifts_everything_after_it(tmp_path: Path) -> None:
    stage = Stage()
    player, run = play(write_folder(tmp_path / "bag"), stage, topics={"/joints"})

    def pause_after_five() -> None:
        if len(stage.sent) == 5:
            player.pause()

    def rest(seconds: float | None) -> None:
        if seconds is None:  # waits without limit: it is paused
            stage.now_s += 10.0
            player.resume()

    stage.on_publish, stage.on_wait = pause_after_five, rest
    assert run().messages == 20
    assert stage.sent[4][0] == pytest.approx(100.0 + 4 * PERIOD_S, abs=1e-6)
    assert stage.sent[5][0] == pytest.approx(110.0 + 5 * PERIOD_S, abs=1e-6)
    assert stage.sent[19][0] == pytest.approx(110.0 + 19 * PERIOD_S, abs=1e-6)


def test_it_can_begin_paused(tmp_path: Path) -> None:
    stage = Stage()
    player, run = play(write_folder(tmp_path / "bag"), stage, paused=True)
    sent_while_paused: list[int] = []

    def rest(seconds: float | None) -> None:
        if seconds is None:
            sent_while_paused.append(len(stage.sent))
            stage.now_s += 3.0
            player.toggle()

    stage.on_wait = rest
    run()
    assert sent_while_paused == [0]
    assert stage.sent[0][0] == pytest.approx(103.0)


def test_a_loop_begins_again_until_it_is_stopped(tmp_path: Path) -> None:
    stage = Stage()
    player, run = play(write_folder(tmp_path / "bag"), stage, loop=True, topics={"/joints"})
    stage.on_publish = lambda: player.stop() if len(stage.sent) == 50 else None
    played = run()
    assert (played.messages, played.loops) == (50, 3)
    stamps = [message.time_ns for _, message in stage.sent]
    assert stamps[20] < stamps[19]  # time jumps back
    assert stamps[20:40] == stamps[:20]
    assert [sent for sent, _ in stage.sent] == sorted(sent for sent, _ in stage.sent)


def test_the_recorded_time_is_told_between_messages(tmp_path: Path) -> None:
    stage = Stage()
    _, run = play(
        write_folder(tmp_path / "bag", count=3),
        stage,
        rate=2.0,
        topics={"/joints"},
        tell_time=True,
    )
    run()
    assert stage.times == sorted(stage.times)
    assert {START_NS, START_NS + PERIOD_NS, START_NS + 2 * PERIOD_NS} <= set(stage.times)
    gaps = [after - before for before, after in zip(stage.times, stage.times[1:], strict=False)]
    assert max(gaps) <= 21_000_000  # 10 ms at rate 2


def test_nothing_to_play_and_bad_rates_are_refused(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "bag", count=0)
    with pytest.raises(InvalidArgumentError, match="found none to play"):
        play(folder, Stage(), topics={"/joints"})
    for rate in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(InvalidArgumentError, match="rate: expected a number above 0"):
            play(folder, Stage(), rate=rate)
