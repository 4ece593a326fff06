"""Holds the way of requests to the control thread and back: one answer each, and in time."""

from __future__ import annotations

import threading

import pytest

from flashrt_ros.errors import (
    BusyError,
    ErrorCode,
    InvalidArgumentError,
    NotConfiguredError,
    NotFoundError,
)
from flashrt_ros.ros.verbs import Answer, Ledger, Verb, VerbQueue, done, refusal

SECOND = 1_000_000_000


def verb(name: str = "snapshot", deadline_ns: int = SECOND) -> Verb:
    return Verb(name, lambda handlers, verb: done("ok"), 0, deadline_ns)


def test_first_answer_wins_and_reaches_every_listener() -> None:
    heard: list[str] = []
    asked = verb()
    asked.listen(lambda answer: heard.append(f"1 {answer.message}"))
    asked.listen(lambda answer: heard.append(f"2 {answer.message}"))
    assert asked.answer(done("first"))
    assert not asked.answer(done("second"))
    asked.listen(lambda answer: heard.append(f"3 {answer.message}"))
    assert heard == ["1 first", "2 first", "3 first"]


def test_timeout_withdraws_what_has_not_begun() -> None:
    asked = verb()
    assert not asked.expire(SECOND - 1)
    assert asked.expire(SECOND)
    assert asked.result is not None
    assert asked.result.code is ErrorCode.TIMEOUT
    assert "withdrawn" in asked.result.message
    assert not asked.begin(), "the control thread must not do it any more"


def test_timeout_says_when_work_may_still_be_done() -> None:
    asked = verb()
    assert asked.begin()
    asked.expire(SECOND)
    assert asked.result is not None
    assert "may still be carried out" in asked.result.message


def test_refusals_carry_code_and_words() -> None:
    assert refusal(NotFoundError("no capsule 'x'")) == Answer(
        ErrorCode.NOT_FOUND, "no capsule 'x'"
    )
    assert refusal(ValueError("odd")).code is ErrorCode.INTERNAL
    assert "ValueError: odd" in refusal(ValueError("odd")).message


def test_queue_keeps_order_and_is_bounded() -> None:
    queue = VerbQueue(length=3)
    verbs = [verb(f"v{i}") for i in range(3)]
    for one in verbs:
        queue.put(one)
    with pytest.raises(BusyError, match="3 requests wait"):
        queue.put(verb())
    assert [queue.get(0.0) for _ in range(4)] == [*verbs, None]


def test_queue_expires_only_what_is_overdue() -> None:
    queue = VerbQueue()
    early, late = verb(deadline_ns=SECOND), verb(deadline_ns=3 * SECOND)
    queue.put(early)
    queue.put(late)
    assert queue.expire(2 * SECOND) == 1
    assert early.result is not None
    assert late.result is None


def test_closed_queue_answers_all() -> None:
    queue = VerbQueue()
    waiting, begun = verb(), verb()
    queue.put(begun)
    assert queue.get(0.0) is begun
    begun.begin()
    queue.put(waiting)
    queue.close(NotConfiguredError("cleaned up"))
    for one in (waiting, begun):
        assert one.result is not None
        assert one.result.code is ErrorCode.NOT_CONFIGURED
    with pytest.raises(NotConfiguredError):
        queue.put(verb())


def test_wake_returns_a_waiting_get() -> None:
    queue = VerbQueue()
    got: list[Verb | None] = []
    waiter = threading.Thread(target=lambda: got.append(queue.get(30.0)))
    waiter.start()
    while not got:
        queue.wake()
        waiter.join(0.01)
    assert got == [None]


def test_repeated_id_gets_the_first_verb() -> None:
    ledger = Ledger()
    first = verb()
    ledger.remember("id", "snapshot a", first)
    assert ledger.find("id", "snapshot a") is first
    first.answer(Answer(ErrorCode.NOT_FOUND, "none"))
    assert ledger.find("id", "snapshot a") is first, "a refusal after work is remembered too"
    assert ledger.find("other", "snapshot a") is None


def test_empty_id_is_not_tracked() -> None:
    ledger = Ledger()
    ledger.remember("", "snapshot a", verb())
    assert len(ledger) == 0
    assert ledger.find("", "snapshot a") is None


def test_clash_of_ids_is_refused() -> None:
    ledger = Ledger()
    ledger.remember("id", "snapshot a", verb())
    with pytest.raises(InvalidArgumentError, match="used for another request"):
        ledger.find("id", "restore a")


@pytest.mark.parametrize("code", [ErrorCode.BUSY, ErrorCode.INACTIVE, ErrorCode.NOT_CONFIGURED])
def test_refusal_without_work_may_be_retried(code: ErrorCode) -> None:
    ledger = Ledger()
    first = verb()
    ledger.remember("id", "snapshot a", first)
    first.answer(Answer(code, "not now"))
    assert ledger.find("id", "snapshot a") is None


def test_retry_after_timeout() -> None:
    ledger = Ledger()
    withdrawn = verb()
    ledger.remember("id", "snapshot a", withdrawn)
    withdrawn.expire(SECOND)
    assert ledger.find("id", "snapshot a") is None, "never begun: may be done now"

    slow = verb()
    ledger.remember("id", "snapshot a", slow)
    slow.begin()
    slow.expire(SECOND)
    with pytest.raises(BusyError, match="still being carried out"):
        ledger.find("id", "snapshot a")
    slow.answer(done("late, but done"))
    found = ledger.find("id", "snapshot a")
    assert found is slow
    assert found.result == done("late, but done")


def test_ledger_is_bounded() -> None:
    ledger = Ledger(length=2)
    for name in "abc":
        ledger.remember(name, name, verb())
    assert len(ledger) == 2
    assert ledger.find("a", "a") is None
    assert ledger.find("c", "c") is not None


def test_large_requests_are_neither_kept_nor_echoed() -> None:
    ledger = Ledger()
    large = "x" * 1_000_000
    kept = verb()
    ledger.remember("a", large, kept)
    with pytest.raises(InvalidArgumentError) as caught:
        ledger.find("a", large + "y")
    assert len(str(caught.value)) < 1000
    with pytest.raises(InvalidArgumentError, match="at most 256 characters"):
        ledger.find(large, "z")
    refused = refusal(InvalidArgumentError(f"name {large}: expected less"))
    assert len(refused.message) < 5000
    assert refused.message.endswith("expected less")


def test_work_is_forgotten_once_done_and_done_though_its_time_was_up() -> None:
    done_work = []
    late = Verb("x", lambda handlers, verb: done_work.append(handlers), 0, SECOND)
    assert late.begin()
    assert late.expire(2 * SECOND)
    late.carry_out("handlers")
    late.carry_out("handlers")
    assert done_work == ["handlers"]
