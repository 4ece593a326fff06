"""What is said of a machine: one line each, with the cure where there is one."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Level(enum.Enum):
    """How bad it is."""

    OK = "ok"
    """As it should be, or of no consequence."""
    WARN = "warn"
    """Works, but worse than it could."""
    FAIL = "fail"
    """Something of this package will not work."""


@dataclass(frozen=True)
class Finding:
    """One line of the report.

    Attributes:
        area: ``machine``, ``gpu``, ``ros`` or ``package``.
        subject: What is judged.
        level: How bad it is.
        text: What was found.
        cure: What to do; empty where nothing is to be done.
        blocks_gpu: No policy can run on a GPU while this is so.
    """

    area: str
    subject: str
    level: Level
    text: str
    cure: str = ""
    blocks_gpu: bool = False


class Area:
    """Collects the findings of one area.

    Args:
        name: Name of the area.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.findings: list[Finding] = []

    def ok(self, subject: str, text: str, blocks_gpu: bool = False) -> None:
        """Adds a line that needs no cure."""
        self.findings.append(Finding(self.name, subject, Level.OK, text, "", blocks_gpu))

    def warn(self, subject: str, text: str, cure: str, blocks_gpu: bool = False) -> None:
        """Adds a warning."""
        self.findings.append(Finding(self.name, subject, Level.WARN, text, cure, blocks_gpu))

    def fail(self, subject: str, text: str, cure: str, blocks_gpu: bool = False) -> None:
        """Adds a failure."""
        self.findings.append(Finding(self.name, subject, Level.FAIL, text, cure, blocks_gpu))
