"""What each service does, on the control thread, without ROS.

Every handler takes the request (any object with the fields of the .srv) and the verb, and returns
the answer, or None where the answer comes later.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

from flashrt_ros.errors import StaleInputError, UnsupportedError
from flashrt_ros.ros.motion import Mode
from flashrt_ros.ros.records import EventKind
from flashrt_ros.ros.status import capsule_record
from flashrt_ros.ros.stepper import Stepper
from flashrt_ros.ros.storage import Save
from flashrt_ros.ros.verbs import Answer, Verb, done
from flashrt_ros.runtime.capsule_folder import file_name
from flashrt_ros.runtime.transfer import StagedCapsule

Handler = Callable[[Any, Verb], "Answer | None"]


class Handlers:
    """The verbs on one session."""

    def __init__(self, stepper: Stepper) -> None:
        """Takes the session and its surroundings from ``stepper``."""
        self._stepper = stepper
        self._session = stepper.session
        self._motion = stepper.motion

    def find(self, name: str) -> Handler:
        """The handler of a service by its name, as its turn comes."""
        self._stepper.heed_task()
        handler: Handler = getattr(self, name)
        return handler

    # Verbs on the live state

    def snapshot(self, request: Any, verb: Verb) -> Answer:
        """See Snapshot.srv."""
        if request.tier not in ("", "device"):
            raise UnsupportedError(
                f"tier: expected '' or 'device', found {request.tier!r}; ~/save_capsule writes a "
                "capsule to disk, and other tiers are not available in this version"
            )
        begun_ns = self._stepper.clock_ns()
        capsule = self._session.snapshot(request.name, request.pin, request.replace)
        evicted = self._evictions(begun_ns)
        self._event(EventKind.SNAPSHOT, begun_ns, verb, capsule)
        return done(
            f"capsule {capsule.name!r} holds the state before step {capsule.host.step} of episode "
            f"{capsule.host.episode} (tick {capsule.tick})",
            capsule=capsule_record(self._session, capsule),
            evicted=evicted,
        )

    def restore(self, request: Any, verb: Verb) -> Answer:
        """See Restore.srv."""
        if request.publish:
            self._motion.refuse_if_overtaken(verb.epoch)
        begun_ns = self._stepper.clock_ns()
        seed = request.seed if request.set_seed else None
        capsule = self._session.restore(request.name, request.allow_inexact, seed)
        words = self._state_changed(
            f"restore of {capsule.name!r}", request.publish, begun_ns, verb
        )
        self._event(EventKind.RESTORE, begun_ns, verb, capsule, seed)
        return done(
            f"capsule {capsule.name!r} is live; {words}",
            capsule=capsule_record(self._session, capsule),
            generation=self._session.generation,
        )

    def rollback(self, request: Any, verb: Verb) -> Answer:
        """See Rollback.srv."""
        if request.publish:
            self._motion.refuse_if_overtaken(verb.epoch)
        begun_ns = self._stepper.clock_ns()
        seed = request.seed if request.set_seed else None
        steps_back = self._session.rollback(request.steps, seed)
        words = self._state_changed("rollback", request.publish, begun_ns, verb)
        self._event(EventKind.ROLLBACK, begun_ns, verb, seed=seed, id=self._session.capsule_id)
        return done(
            f"{steps_back} control steps back; {words}",
            steps_back=steps_back,
            step=self._session.host.step,
            generation=self._session.generation,
        )

    def reset_episode(self, request: Any, verb: Verb) -> Answer:
        """See ResetEpisode.srv."""
        begun_ns = self._stepper.clock_ns()
        seed = request.seed if request.set_seed else None
        task = request.task if request.set_task else self._session.host.task
        self._session.reset_(task, seed)
        words = self._state_changed("reset", not request.hold, begun_ns, verb, end_pause=False)
        self._event(EventKind.RESET, begun_ns, verb, seed=seed)
        return done(
            f"episode {self._session.host.episode} begins; {words}",
            episode=self._session.host.episode,
            generation=self._session.generation,
        )

    def _state_changed(
        self, what: str, publish: bool, begun_ns: int, verb: Verb, end_pause: bool = True
    ) -> str:
        """Intake, plan and a waiting resume belong to the state before; says what comes next."""
        stepper = self._stepper
        stepper.resumption.supersede(what)
        stepper.forget_lineage()
        stepper.commander.halt()
        stepper.source.clear()
        hold = "" if publish else f"after {what}: call ~/resume to go on"
        self._motion.state_changed(begun_ns, hold, end_pause, verb.epoch)
        standing = self._motion.standing
        if standing.mode in (Mode.WAITING, Mode.RUNNING):
            return "goes on with the first input newer than this"
        if standing.mode is Mode.INACTIVE:
            return "on hold until ~/resume" if hold else "the node is inactive"
        return f"{standing.mode.name.lower()}: {standing.reason}"

    def fork(self, request: Any, verb: Verb) -> Answer:
        """See Fork.srv."""
        begun_ns = self._stepper.clock_ns()
        seeds = [int(seed) for seed in request.seeds]
        branches = self._session.fork(
            request.name or None, request.count, seeds, list(request.names)
        )
        evicted = self._evictions(begun_ns)
        for position, branch in enumerate(branches):
            seed = seeds[position] if seeds else None
            self._event(EventKind.FORK, begun_ns, verb, branch, seed)
        return done(
            f"{len(branches)} branches: {', '.join(branch.name for branch in branches)}",
            branches=[capsule_record(self._session, branch) for branch in branches],
            evicted=evicted,
        )

    def resume(self, request: Any, verb: Verb) -> Answer | None:
        """See Command.srv; answered with the first command."""
        self._stepper.resumption.require_none()
        if self._motion.mode is Mode.RUNNING:
            return done("running already")
        self._motion.resume(self._stepper.clock_ns(), verb.epoch)
        self._stepper.resumption.begin(verb)
        return None

    def preview(self, request: Any, verb: Verb) -> None:
        """See Preview.srv; branches run between control periods, then it is answered."""
        self._stepper.previewer.require_none()
        capsules = self._session.check_preview(list(request.names))
        sample = self._stepper.sample_now()
        if sample.faults:
            raise StaleInputError(f"preview: {'; '.join(sample.faults)}; nothing was run")
        run = self._session.begin_preview(capsules, sample.observations)
        self._stepper.previewer.begin(verb, run)

    # Housekeeping

    def list_capsules(self, request: Any, verb: Verb) -> Answer:
        """See ListCapsules.srv."""
        store = self._session.store
        capsules = [c for c in store.list() if request.include_automatic or not c.automatic]
        return done(
            f"{len(capsules)} capsules",
            capsules=[capsule_record(self._session, capsule) for capsule in capsules],
            bytes_used=store.bytes_used,
            bytes_budget=store.bytes_budget,
        )

    def get_capsule(self, request: Any, verb: Verb) -> Answer:
        """See GetCapsule.srv."""
        session = self._session
        capsule = session.store.get(request.name)
        metadata = {
            "host": dataclasses.asdict(capsule.host),
            "noise_key": capsule.noise_key,
            "state": dict(capsule.state_fingerprint.fields),
            "exec": dict(capsule.exec_fingerprint.fields),
            "buffers": [
                {
                    "name": slot.spec.name,
                    "shape": list(slot.spec.shape),
                    "dtype": str(slot.spec.dtype).removeprefix("torch."),
                    "unit": slot.spec.unit,
                    "offset": slot.offset,
                    "size_bytes": slot.size_bytes,
                }
                for slot in session.layout.state
            ],
            # Offsets are within the row of a token.
            "rows": [
                {
                    "name": slot.spec.name,
                    "shape": list(slot.spec.shape),
                    "dtype": str(slot.spec.dtype).removeprefix("torch."),
                    "unit": slot.spec.unit,
                    "offset": slot.offset,
                    "size_bytes": slot.size_bytes,
                }
                for slot in session.layout.rows
            ],
        }
        return done(
            f"capsule {capsule.name!r}",
            capsule=capsule_record(session, capsule),
            lineage=self._lineage(capsule),
            metadata=json.dumps(metadata),
        )

    def _lineage(self, capsule: Any) -> list[str]:
        """Ids from the parent to the root, as far as capsules on the way still exist."""
        ids: list[str] = []
        parent = capsule.parent_id
        while parent and parent not in ids:
            ids.append(parent)
            parent = (
                self._session.store.get(parent).parent_id
                if parent in (self._session.store)
                else ""
            )
        return ids

    def drop_capsule(self, request: Any, verb: Verb) -> Answer:
        """See DropCapsule.srv."""
        begun_ns = self._stepper.clock_ns()
        capsule = self._session.store.get(request.name)
        freed = self._session.drop(request.name, request.force)
        self._event(EventKind.DROP, begun_ns, verb, capsule)
        return done(f"capsule {capsule.name!r} dropped", bytes_freed=freed)

    # Files

    def save_capsule(self, request: Any, verb: Verb) -> None:
        """See SaveCapsule.srv; answered by the storage thread, when the file is on the disk."""
        storage = self._stepper.storage
        storage.require()
        if request.file:
            file_name(request.file)
        begun_ns = self._stepper.clock_ns()
        capsule = self._session.hold(request.name)
        event = self._stepper.event_record(EventKind.SAVE, begun_ns, **self._fields(verb, capsule))
        storage.save(verb, self._session, Save(capsule, request.file, request.replace), event)

    def load_capsule(self, request: Any, verb: Verb) -> None:
        """See LoadCapsule.srv; answered once the storage thread has read the file."""
        storage = self._stepper.storage
        storage.require()
        file_name(request.file)
        if request.name:
            self._session.store.check_free(request.name)

        def finish(staged: StagedCapsule) -> Answer:
            begun_ns = self._stepper.clock_ns()
            capsule = self._session.import_(staged, request.name, request.allow_inexact)
            evicted = self._evictions(begun_ns)
            self._event(EventKind.LOAD, begun_ns, verb, capsule)
            gone = f"; evicted for it: {', '.join(evicted)}" if evicted else ""
            return done(
                f"capsule {capsule.name!r} holds the state before step {capsule.host.step} of "
                f"episode {capsule.host.episode}{gone}",
                capsule=capsule_record(self._session, capsule),
            )

        storage.load(verb, request.file, self._session, request.allow_inexact, finish)

    def _evictions(self, begun_ns: int) -> list[str]:
        evicted = list(self._session.last_evicted)
        for name in evicted:
            self._stepper.event(EventKind.EVICT, begun_ns, name=name)
        return evicted

    def _event(
        self,
        kind: EventKind,
        begun_ns: int,
        verb: Verb,
        capsule: Any = None,
        seed: int | None = None,
        **fields: Any,
    ) -> None:
        if capsule is not None:
            fields.update(self._fields(verb, capsule))
        fields["request_id"] = verb.request_id
        self._stepper.event(kind, begun_ns, seed=seed, **fields)

    @staticmethod
    def _fields(verb: Verb, capsule: Any) -> dict[str, Any]:
        return {
            "id": capsule.id,
            "name": capsule.name,
            "parent_id": capsule.parent_id,
            "size_bytes": capsule.size_bytes,
            "request_id": verb.request_id,
        }
