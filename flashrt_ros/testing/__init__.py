"""The conformance suite: does a policy keep its whole execution state in its declared buffers?

from flashrt_ros.policies.registry import load_policy
from flashrt_ros.testing import check_policy

report = check_policy(load_policy("my_policy"))
print(report)
assert report.ok
"""

from flashrt_ros.testing.check import check_policy
from flashrt_ros.testing.report import Report, Result, Status

__all__ = ["Report", "Result", "Status", "check_policy"]
