"""What a robot offers and a policy needs: contracts and message conversions, no rclpy."""

from flashrt_ros.contract.contract import Contract
from flashrt_ros.contract.conversions import Decoded, decode
from flashrt_ros.contract.output import ActionShaper, Command, Shaped
from flashrt_ros.contract.sampler import Received, Sample, Sampler
from flashrt_ros.contract.start import Admitted, StartGate

__all__ = [
    "ActionShaper",
    "Admitted",
    "Command",
    "Contract",
    "Decoded",
    "Received",
    "Sample",
    "Sampler",
    "Shaped",
    "StartGate",
    "decode",
]
