"""Trees to look at: as text with outcomes, as a table of verb times, as a drawing."""

from __future__ import annotations

import shutil
import subprocess
import textwrap
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from py_trees.behaviour import Behaviour
from py_trees.common import Status
from py_trees.composites import Composite, Parallel, Selector, Sequence
from py_trees.decorators import Decorator
from py_trees.display import unicode_tree

from flashrt_ros.errors import NotFoundError
from flashrt_ros.trees.linked import Linked
from flashrt_ros.trees.service import ServiceBehaviour

DOT_S = 30.0
COLOURS = {
    Status.SUCCESS: "palegreen",
    Status.FAILURE: "lightcoral",
    Status.RUNNING: "khaki",
    Status.INVALID: "white",
}
SHAPES: Mapping[type[Behaviour], str] = {
    Sequence: "box",
    Selector: "octagon",
    Parallel: "parallelogram",
    Composite: "doubleoctagon",
    Decorator: "hexagon",
    Linked: "component",
    Behaviour: "ellipse",
}
"""The first that fits."""
WIDTH = 28
"""Characters of a line in a drawing."""


def text_tree(root: Behaviour) -> str:
    """The tree as text: each behaviour with its outcome, its words, and how long its call took."""
    lines = unicode_tree(root, show_status=True).splitlines()
    for index, node in enumerate(_in_order(root)):
        if isinstance(node, ServiceBehaviour) and node.took_ms == node.took_ms:
            lines[index] += f" ({node.took_ms:.1f} ms)"
    return "\n".join(lines) + "\n"


def verb_table(root: Behaviour) -> str:
    """How the services of a tree did, all of its composites' calls included.

    Times are from sending to the answer, at the tree, of at most the last ten thousand calls.
    Shared with other trees that are on the same ROS node at the time. Those of the last run stay
    after ``shutdown``, until the tree is set up again.
    """
    links = {id(node.times): node.times for node in root.iterate() if isinstance(node, Linked)}
    lines = [f"{'service':16} {'n':>5} {'p50 ms':>8} {'p99 ms':>8} {'max ms':>8}  not done"]
    for verbs in links.values():
        for verb, times in sorted(verbs.items()):
            took = np.percentile(times.took_ms or (float("nan"),), (50, 99, 100))
            middle = " ".join(f"{value:8.1f}" if times.took_ms else f"{'':8}" for value in took)
            counts = (times.refused, times.lost, times.cancelled)
            words = zip(counts, ("refused", "lost", "cancelled"), strict=True)
            bad = ", ".join(f"{count} {word}" for count, word in words if count)
            lines.append(f"{verb:16} {times.done + sum(counts):5} {middle}  {bad}".rstrip())
    return "\n".join(lines) + "\n"


def write_svg(root: Behaviour, path: str | Path) -> None:
    """Draws a tree, its outcomes in colour and words, with the program ``dot``.

    A box is a Sequence, an octagon a Selector, a parallelogram a Parallel, a hexagon a decorator;
    a double octagon is another composite, and what calls services of a node has tabs.

    Args:
        root: Of the tree.
        path: File to be written; ending in ``.dot`` it is the graph itself, without ``dot``.

    Raises:
        NotFoundError: There is no ``dot`` here.
        RuntimeError: ``dot`` failed, with its words.
    """
    path, graph = Path(path), _graph(root)
    if path.suffix == ".dot":
        path.write_text(graph, encoding="utf-8")
        return
    program = shutil.which("dot")
    if program is None:
        raise NotFoundError(
            f"{path}: expected graphviz's program 'dot' for a drawing, found none on PATH; "
            "install graphviz (apt install graphviz), or write a .dot file"
        )
    command = (program, "-Tsvg", "-o", str(path))
    done = subprocess.run(command, input=graph, capture_output=True, text=True, timeout=DOT_S)
    if done.returncode:
        raise RuntimeError(f"{path}: dot ended with {done.returncode}: {done.stderr.strip()}")


def _graph(root: Behaviour) -> str:
    """In graphviz's language; children are in order, left to right."""
    nodes = _in_order(root)
    number = {id(node): index for index, node in enumerate(nodes)}
    lines = ['node [style=filled fontname="sans-serif" fontsize=10];', "ordering=out;"]
    for index, node in enumerate(nodes):
        label = [node.name, *textwrap.wrap(node.feedback_message, WIDTH)]
        shape = next(shape for kind, shape in SHAPES.items() if isinstance(node, kind))
        words = "\\n".join(line.replace("\\", "\\\\").replace('"', '\\"') for line in label)
        lines.append(f'{index} [label="{words}" shape={shape} fillcolor={COLOURS[node.status]}];')
        lines += [f"{index} -> {number[id(child)]};" for child in node.children]
    return "digraph tree {\n" + "\n".join(lines) + "\n}\n"


def _in_order(node: Behaviour) -> list[Behaviour]:
    """The behaviours in the order of the lines."""
    return [node, *(below for child in node.children for below in _in_order(child))]
