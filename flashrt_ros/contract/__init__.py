"""What a robot offers and a policy needs: contracts and message conversions, no rclpy."""

from flashrt_ros.contract.contract import Contract
from flashrt_ros.contract.conversions import Decoded, decode
from flashrt_ros.contract.output import ActionShaper, Command, Shaped
from flashrt_ros.contract.sample import InputStamp, Received, Sample
from flashrt_ros.contract.sampler import Sampler
from flashrt_ros.contract.start import Admitted, StartGate

__all__ = [
    "ActionShaper",
    "Admitted",
    "Command",
    "Contract",
    "Decoded",
    "InputStamp",
    "Received",
    "Sample",
    "Sampler",
    "Shaped",
    "StartGate",
    "decode",
]
