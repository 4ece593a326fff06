"""Recordings of our node computed again, from exactly the inputs that the robot used."""

from flashrt_ros.evaluate.reproduce.finding import Reproduction, Verdict
from flashrt_ros.evaluate.reproduce.work import reproduce

__all__ = ["Reproduction", "Verdict", "reproduce"]
