"""Which messages stand for the steps of a history: as-of sampling on header stamps."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from flashrt_ros.contract.message import Message
from flashrt_ros.contract.schema import History, Input, Observation
from flashrt_ros.errors import ContractError

SLACK = 0.1
"""Share of a period by which a message may be later than its moment: the jitter of a camera."""


def window_ns(observations: Iterable[Observation], topic: str) -> int:
    """How long messages of a topic are kept for histories; 0 where none reads it."""
    spans_ms = [
        observation.history.span_ms + observation.history.period_ms + observation.max_age_ms
        for observation in observations
        if observation.history is not None and topic in observation.topics
    ]
    return round(max(spans_ms, default=0.0) * 1e6)


def past(
    history: History,
    sources: Collection[Input],
    messages: Sequence[Message],
    newest: Message,
    not_before_ns: int,
    max_age_ms: float,
) -> list[Message]:
    """The messages of all steps, oldest first, ``newest`` last.

    Step k from the end is the newest message that is stamped at least k periods before ``newest``
    (less a tenth of a period). Broken messages are passed over.

    Args:
        history: What is asked for.
        sources: All that an observation reads of the topic; a step is one message for all.
        messages: Of its topic, in order of reception.
        newest: The one that the last step reads.
        not_before_ns: Steady clock; messages received before do not count.
        max_age_ms: A message may lie so far before its moment.

    Raises:
        ContractError: Not enough messages yet, or none near enough to a moment.
    """
    usable = [
        message
        for message in messages
        if not_before_ns <= message.received_ns
        and message.sequence <= newest.sequence
        and not message.faults.keys() & sources
    ]
    stamped = all(message.stamp_ns for message in usable)

    def time_ns(message: Message) -> int:
        return message.stamp_ns if stamped else message.received_ns

    period_ns = round(history.period_ms * 1e6)
    slack_ns = round(SLACK * period_ns)
    usable.sort(key=time_ns)
    found = [newest]
    position = len(usable) - 1
    for step in range(1, history.steps):
        moment_ns = time_ns(newest) - step * period_ns
        while position >= 0 and time_ns(usable[position]) > moment_ns + slack_ns:
            position -= 1
        if position < 0:
            if history.before == "wait":
                raise ContractError(
                    f"history: expected {history.steps} steps of {history.period_ms:g} ms, found "
                    f"{step} so far"
                )
            found.append(usable[0])
            continue
        lag_ms = (moment_ns - time_ns(usable[position])) / 1e6
        if lag_ms > max_age_ms:
            raise ContractError(
                f"history: expected a message at most {max_age_ms:g} ms before step -{step}, "
                f"found one {lag_ms:.0f} ms before it"
            )
        found.append(usable[position])
    return found[::-1]
