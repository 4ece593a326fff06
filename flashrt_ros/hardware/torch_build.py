"""Reads the build of torch in this process; nothing is run on a GPU."""

from __future__ import annotations

from importlib import metadata

from flashrt_ros.hardware.facts import Torch


def read_torch_build() -> Torch:
    """Reads what can be known without making a CUDA context.

    Raises:
        ImportError: Torch is missing or broken.
    """
    import torch

    return Torch(
        version=str(torch.__version__),
        cuda=torch.version.cuda,
        architectures=tuple(torch.cuda.get_arch_list()) if torch.version.cuda else (),
        available=torch.cuda.is_available(),
        threads=torch.get_num_threads(),
        triton=_version("triton"),
        bindings=_version("cuda-bindings"),
    )


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""
