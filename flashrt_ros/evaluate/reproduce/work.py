"""Computes every action of a recording again, from exactly the inputs that the robot used."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch

from flashrt_ros.bag.reader import BagReader
from flashrt_ros.contract.contract import Contract
from flashrt_ros.contract.definitions import require_type
from flashrt_ros.contract.input_types import is_stamped
from flashrt_ros.contract.rebuild import Key, Rebuilder
from flashrt_ros.contract.versions import versions
from flashrt_ros.errors import ContractError, FlashRTError
from flashrt_ros.evaluate.reproduce.changes import compare_documents, compare_facts
from flashrt_ros.evaluate.reproduce.finding import (
    Change,
    Difference,
    Input,
    Reproduction,
)
from flashrt_ros.evaluate.reproduce.journal import Journal, Run, Step, Vector
from flashrt_ros.evaluate.reproduce.messages import NamedMessages
from flashrt_ros.evaluate.reproduce.outgoing import Outgoing
from flashrt_ros.evaluate.reproduce.shelf import Shelf
from flashrt_ros.evaluate.reproduce.steps import (
    Again,
    MissingError,
    OtherwiseError,
    Steps,
    inputs_of,
    samples_of,
)
from flashrt_ros.evaluate.reproduce.verbs import Verbs
from flashrt_ros.policies.registry import load_policy
from flashrt_ros.runtime.engine import complete_layout
from flashrt_ros.runtime.policy import PlanKind, Policy
from flashrt_ros.runtime.session import PolicySession

Progress = Callable[[int], None]
"""Told the recorded time that has been reached."""
THREADS = "cpu.threads"


def reproduce(
    path: str | Path,
    policy: str | Policy,
    contract: str | Path | Contract | None = None,
    capsule_folder: str | Path | None = None,
    node: str = "",
    device: str = "cpu",
    numerics: str = "exact",
    trust: bool = False,
    progress: Progress | None = None,
) -> Reproduction:
    """Computes a recording of our node again.

    Args:
        path: Of the recording; see ``BagReader``.
        policy: As for ``load_policy``, or a policy.
        contract: Its file, or a contract; None: the one on record.
        capsule_folder: Where saved capsules lie; None: nowhere.
        node: Full name of the node, where several are in the recording.
        device: ``cpu``, ``cuda`` or ``cuda:N``.
        numerics: See ``load_policy``.
        trust: The same.
        progress: Told how far it is.

    Raises:
        FlashRTError: Recording, policy, contract or folder cannot be read or do not fit; says what
            was expected. What the recording lacks is no error but a verdict.
    """
    name = policy if isinstance(policy, str) else policy.family
    loaded = load_policy(policy, trust, numerics) if isinstance(policy, str) else policy
    folder = None if capsule_folder is None else Path(capsule_folder).expanduser()
    shelf = Shelf(folder)
    with BagReader(path) as reader:
        journal = Journal(reader, node)
        if contract is None:
            agreed = journal.contract()
            used = f"as recorded ({agreed.source})"
        else:
            agreed = contract if isinstance(contract, Contract) else Contract.load(contract)
            used = agreed.source
        agreed.check(loaded.ports(), loaded.layout())
        asked = _Asked(loaded, agreed)
        journal.learn(asked.look)
        found = Reproduction(str(path), journal.topic, name, contract=used)
        with _threads(_recorded_threads(journal, device)):
            session = _open(loaded, device)
            try:
                work = _Work(reader, journal, session, agreed, asked, shelf, found)
                work.run(progress)
                found.computed = {
                    "family": loaded.family,
                    "state_id": session.state_id,
                    "exec_id": session.exec_id,
                    "device": session.device.name,
                }
                found.changes = _changes(journal, session, agreed)
            finally:
                session.close()
        found.remarks += [*journal.defects, *shelf.defects, *reader.defects]
    return found


class _Asked:
    """Which messages will be asked for, and how often."""

    def __init__(self, policy: Policy, contract: Contract) -> None:
        self.rebuilder = Rebuilder(contract)
        self.counts: Counter[Key] = Counter()
        self.topics: dict[Key, str] = {}
        self._beside = policy.plan_kind is PlanKind.BESIDE
        self._observes = self._beside and policy.act_observes

    def look(self, step: Step) -> None:
        for stamps in samples_of(step, self._beside, self._observes):
            try:
                needed = self.rebuilder.needed(stamps)
            except ContractError:
                continue  # said when the step's turn comes
            self.topics.update(needed)
            self.counts.update(needed.keys())


class _Work:
    """The second pass: step by step."""

    def __init__(
        self,
        reader: BagReader,
        journal: Journal,
        session: PolicySession,
        contract: Contract,
        asked: _Asked,
        shelf: Shelf,
        found: Reproduction,
    ) -> None:
        types = {topic: type_name for topic, type_name, _ in contract.topics()}
        recorded = {key[0]: types[topic] for key, topic in asked.topics.items()}
        there = {topic.name for topic in reader.topics}
        for type_name in recorded.values():
            require_type(type_name)
        messages = NamedMessages(
            reader.messages(recorded.keys() & there),
            asked.counts,
            asked.topics,
            asked.rebuilder,
            frozenset(topic for topic, type_name in recorded.items() if is_stamped(type_name)),
        )
        self._journal = journal
        self._session = session
        self._verbs = Verbs(session, shelf)
        self._steps = Steps(session, asked.rebuilder, messages)
        self._outgoing = Outgoing(contract)
        self._found = found

    def run(self, progress: Progress | None) -> None:
        found, verbs = self._found, self._verbs
        run: Run | None = None
        for step in self._journal.steps():
            if run is None or step.where.run != run.id:
                if run is not None:
                    verbs.finish()
                run = self._journal.runs[step.where.run]
                verbs.begin(run)
                self._steps.forget(0)
            found.steps += 1
            self._step(step, run)
            if progress is not None:
                progress(step.where.time_ns)
        if run is not None:
            verbs.finish()
        found.verbs = dict(verbs.verbs)
        found.capsules = verbs.compared
        found.gaps = verbs.gaps
        if verbs.odd is not None:
            odd, first = verbs.odd, found.first
            if first is None or odd.where.time_ns < first.where.time_ns:
                found.first = odd

    def _step(self, step: Step, run: Run) -> None:
        verbs, found = self._verbs, self._found
        generation = self._session.generation
        verbs.catch_up(step)
        if self._session.generation != generation:
            self._steps.forget(step.where.tick)
        if not verbs.known:
            self._pass_over(step)
            return
        try:
            again = self._steps.step(step, run)
            difference = self._compare(step, again)
        except MissingError as error:
            verbs.lose(step.where, error.lost, str(error), error.inputs)
            self._count_gap()
        except (OtherwiseError, FlashRTError) as error:
            self._differs(Difference(step.where, "control flow", str(error), inputs=_behind(step)))
            verbs.stray()
        else:
            if difference is None:
                found.reproduced += 1
            else:
                self._differs(difference)
        verbs.passed()

    def _pass_over(self, step: Step) -> None:
        with contextlib.suppress(ContractError):
            self._steps.pass_over(step)
        if self._verbs.gap is None:
            self._found.differing += 1
        else:
            self._count_gap()
        self._verbs.passed()

    def _count_gap(self) -> None:
        if self._verbs.gap is not None:
            self._verbs.gap.steps += 1

    def _differs(self, difference: Difference) -> None:
        self._found.differing += 1
        if self._found.first is None:
            self._found.first = difference

    def _compare(self, step: Step, again: Again) -> Difference | None:
        """The first thing that is not the same, in the order in which one follows from another."""

        def words(what: str, text: str, recorded: Vector, computed: Vector) -> Difference:
            return Difference(
                step.where, what, text, tuple(recorded), tuple(computed), _behind(step)
            )

        nothing = np.empty(0)
        recorded_digest, here_digest = step.observation_digest, again.observation_digest
        if recorded_digest and here_digest and recorded_digest != here_digest:
            text = (
                f"the messages are the same, the arrays made of them are not: xxh3"
                f" {recorded_digest:016x} recorded, {here_digest:016x} here"
            )
            return words("observation_digest", text, nothing, nothing)
        if step.predicted.tobytes() != again.predicted.tobytes():
            text = _apart(step.names, step.predicted, again.predicted)
            return words("predicted", text, step.predicted, again.predicted)
        if step.state_digest and step.state_digest != (here := self._session.state_digest()):
            text = f"SHA-256 of the state after it: {step.state_digest} recorded, {here} here"
            return words("state_digest", text, nothing, nothing)
        action_A = self._outgoing.action(again.predicted, step)
        if step.action.tobytes() != action_A.tobytes():
            text = _apart(step.names, step.action, action_A) + "; the policy's own action is equal"
            return words("action", text, step.action, action_A)
        return None


def _behind(step: Step) -> tuple[Input, ...]:
    return inputs_of([*step.stamps, *step.act_stamps])


def _apart(names: tuple[str, ...], recorded: Vector, computed: Vector) -> str:
    if recorded.shape != computed.shape:
        return f"{recorded.size} elements recorded, {computed.size} here"
    other = np.flatnonzero(recorded.view(np.uint64) != computed.view(np.uint64))
    apart = np.abs(recorded - computed)[other]
    worst = int(other[int(np.nanargmax(apart))]) if np.isfinite(apart).any() else int(other[0])
    name = names[worst] if worst < len(names) else f"element {worst}"
    return (
        f"{len(other)} of {recorded.size} elements, most {name}: {recorded[worst]:.17g} recorded,"
        f" {computed[worst]:.17g} here"
    )


def _open(policy: Policy, device: str) -> PolicySession:
    layout = complete_layout(policy)
    whole_bytes = layout.fixed_bytes + 4096 + layout.capacity * layout.row_bytes
    return PolicySession(
        policy,
        device=device,
        store_bytes=max(1 << 20, 8 * whole_bytes),
        rollback_depth=0,
        preview_sets=0,
    )


def _recorded_threads(journal: Journal, device: str) -> int:
    """Threads of torch's operators that the recording was made with; 0: not known."""
    if device != "cpu":
        return 0
    for run in journal.runs.values():
        if run.provenance is not None:
            threads = str(run.provenance["exec_facts"].get(THREADS, 0))
            return int(threads) if threads.isdecimal() else 0
    return 0


@contextlib.contextmanager
def _threads(count: int) -> Iterator[None]:
    """A sum over another number of threads may round otherwise."""
    before = torch.get_num_threads()
    try:
        if count:
            torch.set_num_threads(count)
        yield
    finally:
        torch.set_num_threads(before)


def _changes(journal: Journal, session: PolicySession, contract: Contract) -> list[Change]:
    """What is another one here than it was then."""
    found: list[Change] = []
    for run in journal.runs.values():
        if run.provenance is None:
            if run.steps:
                journal.defects.append(
                    f"{journal.node}/provenance: none recorded of run {run.id or '(none)'}, so"
                    " weights, device and versions cannot be compared"
                )
            continue
        then = run.provenance
        found += compare_facts(then["state_facts"], session.state_fingerprint.fields)
        exec_facts = {k: v for k, v in then["exec_facts"].items() if k != "state"}
        ours = {k: v for k, v in session.exec_fingerprint.fields.items() if k != "state"}
        found += compare_facts(exec_facts, ours)
        found += compare_facts(then["versions"], versions())
        found += compare_documents(then["contract"], json.loads(contract.document or "{}"))
    return list(dict.fromkeys(found))
