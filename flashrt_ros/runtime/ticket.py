"""The seam between the control thread and the planner thread."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class PlanTicket:
    """A plan that was begun; adopted only while nothing has overtaken it.

    Attributes:
        generation: Generation under which it began.
        step: Control step of the observation that it sees.
        number: Counts the session's tickets; only the newest may be adopted.
        done: True once ``run_plan`` has run it.
    """

    generation: int
    step: int
    number: int
    done: bool = False
