"""Trees of BehaviorTree.CPP 4 that call a policy node from Python.

    factory = TreeFactory(node, policy="/policy")
    factory.leaf("Grasp", grasp, inputs=["object"])
    with factory.load("pick.xml") as tree:
        while tree.tick() == "RUNNING":
            time.sleep(0.02)

The XML is what a program with the C++ plug-in reads, and BehaviorTree.CPP itself runs it, by the
bindings of ``behaviortreepy``; only leaves are Python.
"""

try:
    import behaviortreepy as _behaviortreepy  # noqa: F401
except ModuleNotFoundError as _error:
    raise ModuleNotFoundError(
        "flashrt_ros.trees.btcpp needs behaviortreepy, which is not installed: pip install "
        "'flashrt_ros[btcpp]'",
        name=_error.name,
    ) from _error

from flashrt_ros.trees.btcpp.factory import Outcome, Tree, TreeFactory
from flashrt_ros.trees.btcpp.leaf import Leaf, Steps
from flashrt_ros.trees.btcpp.ports import Ports

__all__ = ["Leaf", "Outcome", "Ports", "Steps", "Tree", "TreeFactory"]
