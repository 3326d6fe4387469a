"""The life of a worker: one table, whose every pair is either lawful or refused with the upstream's story."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coffer_common.restart import Policy, Restarts
from coffer_supervisor.core import lifecycle as lc
from coffer_supervisor.core import lifecycle_words as w
from coffer_supervisor.core.lifecycle import IllegalEvent, Lifecycle


class Play:
    """Plays events against one upstream; ``fork`` to ``running`` are shortcuts for the usual beginning."""

    def __init__(self, **more: object) -> None:
        self.life = Lifecycle("files", **more)  # type: ignore[arg-type]
        self.now = 0.0

    def do(self, event: w.Event) -> list[str]:
        self.effects = self.life.handle(event, self.now)
        return [type(effect).__name__ for effect in self.effects]

    def forking(self) -> "Play":
        self.do(w.Enable())
        self.do(w.Granted())
        return self

    def greeting(self) -> "Play":
        self.forking()
        self.do(w.Forked(self.life.incarnation, 100 + self.life.incarnation))
        return self

    def running(self) -> "Play":
        self.greeting()
        self.do(w.Greeted(self.life.incarnation, self.life.pid))
        return self

    def suspect(self) -> "Play":
        self.running()
        self.do(w.Unresponsive(1, "silent"))
        return self

    def killed(self) -> "Play":
        self.suspect()
        self.do(w.Dumped(1))
        return self

    def waiting(self) -> "Play":
        self.running()
        self.do(w.Exited(1, "crashed"))
        return self


def test_an_enabled_server_is_queued_forked_greeted_and_configured() -> None:
    play = Play()
    assert play.life.state == "disabled"
    assert play.do(w.Enable()) == ["Queue", "Announce"]
    assert play.life.state == "stopped"
    assert play.do(w.Granted()) == ["Fork", "SetTimer", "Announce"]
    assert play.effects[:2] == [w.Fork(1), w.SetTimer(1, "slot", 3.0)]  # a start that hangs lets others pass
    assert play.life.state == "starting"
    assert play.do(w.Forked(1, 4711)) == ["SetTimer", "Announce"]
    assert play.do(w.Greeted(1, 4711)) == ["Configure", "Announce"]
    assert (play.life.state, play.life.pid) == ("starting", 4711)
    assert play.do(w.Reported(1, "ready")) == ["Release", "Announce"]
    assert play.do(w.Reported(1, "ready")) == ["Announce"], "its place was given back already"
    assert play.life.state == "ready"


def test_a_starting_report_keeps_the_place_among_those_starting() -> None:
    play = Play().running()
    assert play.do(w.Reported(1, "starting", "downloading")) == ["Announce"]
    assert play.life.message == "downloading"
    assert play.life.slot


@pytest.mark.parametrize("phase", ["forking", "greeting", "running"])
def test_one_that_starts_for_too_long_gives_its_place_to_others(phase: str) -> None:
    """P13: starts are bounded in number; one slow start does not hold up the others for ever."""
    play: Play = getattr(Play(), phase)()
    assert play.do(w.Fired(1, "slot")) == ["Release"]
    assert play.do(w.Fired(1, "slot")) == []


def test_a_hello_may_come_before_the_news_of_the_fork() -> None:
    play = Play().forking()
    assert play.do(w.Greeted(1, 9)) == ["Configure", "Announce"]
    assert play.do(w.Forked(1, 9)) == []
    assert play.life.phase == "running"


def test_a_worker_that_says_no_hello_is_killed_with_a_reason() -> None:
    play = Play().greeting()
    assert play.do(w.Fired(1, "hello")) == ["Release", "Kill"]
    assert play.effects[-1] == w.Kill(1, 101, "the worker said no Hello within 30 s")
    assert play.do(w.Greeted(1, 101)) == []
    assert play.do(w.Exited(1, "signal 9")) == ["Lost", "SetTimer", "Announce"]
    assert "Hello" in play.life.message


def test_a_crash_backs_off_and_the_next_worker_has_a_new_number() -> None:
    play = Play().running()
    assert play.do(w.Exited(1, "killed by signal 11")) == ["Release", "Lost", "SetTimer", "Announce"]
    assert play.life.state == "backoff"
    assert play.life.retry_at is not None
    assert play.do(w.Fired(1, "retry")) == ["Queue", "Announce"]
    play.do(w.Granted())
    assert play.life.incarnation == 2


def test_more_crashes_than_the_policy_allows_mean_failed_and_a_slow_retry() -> None:
    """P10, P11: no restart storm, and no giving up for ever."""
    play = Play(restarts=Restarts(Policy(attempts=2)))
    for number in range(1, 4):
        play.do(w.Enable()) if number == 1 else play.do(w.Fired(number - 1, "retry"))
        play.do(w.Granted())
        play.do(w.ForkFailed(number, "no memory"))
    assert play.life.state == "failed"
    assert play.life.message == "no memory"
    assert play.do(w.Fired(3, "retry")) == ["Queue", "Announce"]


@pytest.mark.parametrize("event", [w.Restart(), w.Reconfigure()])
def test_a_person_or_a_new_configuration_ends_the_waiting_and_forgives(event: w.Event) -> None:
    play = Play().waiting()
    assert play.do(event) == ["Queue", "Announce"]
    assert play.life.restarts.failures == []


def test_what_cannot_be_configured_is_failed_and_tried_again_slowly() -> None:
    """A missing credential: the state names the remedy, and nothing spins."""
    play = Play().forking()
    assert play.do(w.Unconfigurable(1, "store it with: coffer credential set x")) == [
        "Release",
        "Lost",
        "SetTimer",
        "Announce",
    ]
    assert play.life.state == "failed"
    assert play.effects[2] == w.SetTimer(1, "retry", 60.0)


def test_an_unresponsive_worker_is_asked_for_its_stacks_then_killed_and_replaced() -> None:
    """The worker is first asked for its stacks, then killed with all it started, and replaced."""
    play = Play().running()
    assert play.do(w.Unresponsive(1, "missed 11 heartbeats")) == ["Release", "AskDump", "SetTimer", "Announce"]
    assert play.do(w.Fired(1, "dump")) == ["Kill"]
    assert play.effects == [w.Kill(1, 101, "missed 11 heartbeats")]
    play.do(w.Exited(1, "signal 9"))
    assert (play.life.state, play.life.message) == ("backoff", "missed 11 heartbeats")


def test_stacks_that_come_in_time_hasten_the_kill() -> None:
    assert Play().suspect().do(w.Dumped(1)) == ["Kill"]


def test_a_suspect_that_dies_by_itself_is_replaced() -> None:
    play = Play().suspect()
    assert play.do(w.Reported(1, "ready")) == []
    assert play.do(w.Unresponsive(1, "again")) == []
    assert play.do(w.Exited(1, "gone")) == ["Lost", "SetTimer", "Announce"]


def test_a_changed_configuration_drains_then_starts_again() -> None:
    play = Play().running()
    play.do(w.Reported(1, "ready"))
    assert play.do(w.Reconfigure()) == ["SendStop", "SetTimer", "Announce"]
    assert play.effects[0] == w.SendStop(1, lc.DRAIN_CHANGE, "the server's configuration changed")
    assert play.life.state == "stopping"
    assert play.do(w.Exited(1, "exited with code 0")) == ["Lost", "Queue", "Announce"]
    assert play.life.restarts.total == 0, "it was wished: no crash"


def test_an_upstream_that_is_not_up_has_nothing_to_drain() -> None:
    play = Play().running()
    assert play.do(w.Reconfigure()) == ["Release", "SendStop", "SetTimer", "Announce"]
    assert play.effects[1] == w.SendStop(1, 0.0, "the server's configuration changed")


def test_disabling_stops_and_rests_and_enabling_meanwhile_starts_again() -> None:
    play = Play().running()
    play.do(w.Disable())
    assert play.life.next == "disabled"
    play.do(w.Enable())
    assert play.life.next == "start"
    play.do(w.Disable())
    assert play.do(w.Restart()) == [], "a restart does not enable"
    assert play.do(w.Exited(1, "exited with code 0")) == ["Lost", "Announce"]
    assert (play.life.phase, play.life.pid) == ("disabled", 0)


def test_removing_ends_with_nothing_left() -> None:
    play = Play().running()
    play.do(w.Remove())
    assert play.do(w.Exited(1, "exited with code 0")) == ["Lost", "Announce", "Gone"]
    assert play.life.state == "disabled"


def test_a_worker_that_does_not_stop_is_killed() -> None:
    play = Play().running()
    play.do(w.Disable())
    assert play.do(w.Fired(1, "stop")) == ["Kill"]
    assert play.do(w.Unresponsive(1, "silent")) == ["Kill"]
    assert play.effects == [w.Kill(1, play.life.pid, "silent")]


def test_a_fork_that_is_no_longer_wanted_is_killed_when_it_is_done() -> None:
    play = Play().forking()
    assert play.do(w.Disable()) == ["Release", "Announce"]
    assert play.do(w.Fired(1, "stop")) == [], "there is no process to kill yet"
    assert play.do(w.Forked(1, 9)) == ["Kill"]
    assert play.do(w.Greeted(1, 9)) == []
    assert play.do(w.Exited(1, "signal 9")) == ["Lost", "Announce"]


@pytest.mark.parametrize("event", [w.ForkFailed(1, "x"), w.Unconfigurable(1, "x")])
def test_a_fork_that_fails_when_it_is_no_longer_wanted_is_the_end(event: w.Event) -> None:
    play = Play().forking()
    play.do(w.Remove())
    assert play.do(event) == ["Lost", "Announce", "Gone"]


@pytest.mark.parametrize("phase", ["greeting", "suspect"])
@pytest.mark.parametrize(
    ("event", "then"), [(w.Disable(), "disabled"), (w.Remove(), "removed"), (w.Restart(), "start")]
)
def test_a_worker_that_cannot_be_asked_is_killed(phase: str, event: w.Event, then: str) -> None:
    play: Play = getattr(Play(), phase)()
    assert "Kill" in play.do(event)
    assert (play.life.phase, play.life.next) == ("stopping", then)


def test_waiting_and_queued_servers_can_be_disabled_and_removed() -> None:
    assert Play().waiting().do(w.Disable()) == ["Announce"]
    assert Play().waiting().do(w.Remove()) == ["Announce", "Gone"]
    queued = Play()
    queued.do(w.Enable())
    assert queued.do(w.Disable()) == ["Unqueue", "Announce"]
    queued.do(w.Enable())
    assert queued.do(w.Remove()) == ["Unqueue", "Announce", "Gone"]
    assert Play().do(w.Remove()) == ["Announce", "Gone"]


def test_what_is_said_of_an_older_worker_is_ignored() -> None:
    """Exits of an older incarnation are ignored."""
    play = Play().waiting()
    play.do(w.Fired(1, "retry"))
    play.do(w.Granted())
    assert play.do(w.Exited(1, "late")) == []
    assert (play.life.phase, play.life.ignored) == ("forking", 1)


def test_news_of_a_fork_after_its_end_is_no_news() -> None:
    play = Play().forking()
    play.do(w.Exited(1, "died at once"))
    assert play.do(w.Forked(1, 9)) == []
    assert play.do(w.Greeted(1, 9)) == []


def test_an_event_that_cannot_happen_raises_with_the_story() -> None:
    play = Play().running()
    with pytest.raises(IllegalEvent, match=r"(?s)'files'.*while running.*disabled --Enable.*greeting"):
        play.do(w.Granted())


@pytest.mark.parametrize(
    ("phase", "state"), [("suspect", "ready"), ("killed", "ready"), ("waiting", "backoff"), ("running", "ready")]
)
def test_states_as_an_operator_sees_them(phase: str, state: str) -> None:
    play = Play()
    play.life.reported = "ready"
    getattr(play, phase)()
    play.life.reported = "ready"
    assert play.life.state == state


def _events(life: Lifecycle) -> list[w.Event]:
    """What may come in any phase: a person's wishes, timers, and news of this worker or an older one."""
    inc = life.incarnation
    anytime: list[w.Event] = [w.Enable(), w.Disable(), w.Restart(), w.Reconfigure()]
    anytime += [w.Fired(n, t) for n in {inc, inc - 1} for t in ("hello", "dump", "stop", "retry", "slot")]
    anytime += [w.Exited(inc - 1, "old"), w.Forked(inc - 1, 1), w.Reported(inc - 1, "ready")]
    if life.phase == "queued":
        anytime.append(w.Granted())
    if life.phase == "forking":
        anytime += [w.Forked(inc, 7), w.ForkFailed(inc, "x"), w.Unconfigurable(inc, "x"), w.Greeted(inc, 7)]
    if life.phase == "greeting":
        anytime += [w.Greeted(inc, 7), w.Exited(inc, "x")]
    if life.phase in ("running", "suspect", "killed"):
        anytime += [w.Reported(inc, "failed"), w.Unresponsive(inc, "x"), w.Dumped(inc), w.Exited(inc, "x")]
    if life.phase == "stopping":
        anytime += [w.Exited(inc, "x")]
    return anytime


@given(st.data())
def test_no_lawful_story_raises_and_places_and_workers_are_accounted_for(data: st.DataObject) -> None:
    life, now, held = Lifecycle("x"), 0.0, 0
    alive: set[int] = set()
    for _ in range(data.draw(st.integers(0, 60))):
        event = data.draw(st.sampled_from(_events(life)))
        now += data.draw(st.sampled_from([0.0, 0.3, 40.0]))
        effects = life.handle(event, now, 0.5)
        for effect in effects:
            match effect:
                case w.Fork(incarnation):
                    assert not alive, "never two workers of one upstream"
                    alive.add(incarnation)
                    held += 1
                case w.Release():
                    held -= 1
                case w.Lost(incarnation):
                    alive.discard(incarnation)
                case w.Kill(_, _, reason):
                    assert reason, "every kill carries a reason"
        assert held == int(life.slot)
        assert life.state in ("disabled", "stopped", "starting", "ready", "backoff", "failed", "stopping")


def test_every_pair_of_the_table_has_a_phase_that_exists() -> None:
    phases = {phase for phase, _ in lc._TABLE}
    events = {event for _, event in lc._TABLE}
    assert phases == {
        "disabled", "queued", "forking", "greeting", "running", "suspect", "killed", "stopping", "waiting", "removed",
    }  # fmt: skip
    missing = [pair for pair in itertools.product(phases - {"removed"}, (w.Disable, w.Enable)) if pair not in lc._TABLE]
    assert not missing, f"a wish is heard in every phase: {missing}"
    assert len(events) == 15
