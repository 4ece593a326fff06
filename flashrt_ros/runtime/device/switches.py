"""The switches of torch that change the bits of a result, in words."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

import torch

_COMMON: Mapping[str, Callable[[], object]] = {
    "torch": lambda: torch.__version__,
    "torch.revision": lambda: torch.version.git_version,
    "torch.default_dtype": torch.get_default_dtype,
    "torch.deterministic": torch.are_deterministic_algorithms_enabled,
    "torch.float32_matmul_precision": torch.get_float32_matmul_precision,
    "torch.mkldnn": lambda: torch.backends.mkldnn.enabled,
}
_CUDA: Mapping[str, Callable[[], object]] = {
    "torch.cuda.tf32": lambda: torch.backends.cuda.matmul.allow_tf32,
    "torch.cudnn.tf32": lambda: torch.backends.cudnn.allow_tf32,
    "torch.cudnn.deterministic": lambda: torch.backends.cudnn.deterministic,
    "torch.cudnn.enabled": lambda: torch.backends.cudnn.enabled,
    "torch.cuda.fp16_reduction": (
        lambda: torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction
    ),
    "torch.cuda.bf16_reduction": (
        lambda: torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction
    ),
    "torch.cuda.sdp": lambda: (
        torch.backends.cuda.flash_sdp_enabled(),
        torch.backends.cuda.mem_efficient_sdp_enabled(),
        torch.backends.cuda.math_sdp_enabled(),
        torch.backends.cuda.cudnn_sdp_enabled(),
    ),
    "env.cublas_workspace": lambda: os.environ.get("CUBLAS_WORKSPACE_CONFIG", ""),
}


def numeric_switches(device_type: str) -> dict[str, str]:
    """Returns switch to value; a switch that this torch has not got reads ``absent``.

    Args:
        device_type: ``cpu`` or ``cuda``; those of the other one are left out.
    """
    values: dict[str, str] = {}
    readers = {**_COMMON, **(_CUDA if device_type == "cuda" else {})}
    for name, read in readers.items():
        try:
            values[name] = str(read())
        except (AttributeError, RuntimeError):
            # Newer releases refuse to read an old TF32 switch once the new one has been set.
            values[name] = "absent"
    return values
