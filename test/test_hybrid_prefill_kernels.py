"""Triton kernels for prefill: torch's numbers, the same state however a sequence is cut.

They take the place of functions whose numbers everything else rests on, so each is compared over
shapes that fill no block, over inputs that are parts of other tensors, and over what makes
careless arithmetic infinite; then a whole model. Where there is no GPU, Triton's interpreter
computes the small ones.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

cases = pytest.importorskip("hybrid_prefill_cases", reason="needs triton")
DTYPES = [torch.float32, torch.bfloat16]


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", DTYPES)
def test_kernels_do_what_torch_does(dtype: torch.dtype) -> None:
    found = {case.name: case.errors() for case in cases.all_cases("cuda", dtype, small=False)}
    assert not {name: errors for name, errors in found.items() if not cases.good(errors)}


@pytest.mark.slow
def test_small_ones_by_the_interpreter() -> None:
    root = Path(__file__).resolve().parent.parent
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(root)}
    script = root / "test" / "hybrid_prefill_cases.py"
    done = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True)
    assert done.returncode == 0, (done.stdout + done.stderr).decode()[-4000:]


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tokens", [64, 256, 1024])
def test_the_state_has_the_same_bits_however_a_sequence_is_cut(
    dtype: torch.dtype, tokens: int
) -> None:
    delta_chunks = cases.delta_chunks
    *parts, state = cases.delta_inputs(cases.Draw("cuda", dtype), 2048, (4, 8), (128, 128))
    _, whole = delta_chunks(*parts, state, 64)
    cut, other = state, state
    for n in range(0, 2048, tokens):
        _, cut = delta_chunks(*(x[n : n + tokens] for x in parts), cut, 64)
        _, other = delta_chunks(*(x[n : n + tokens] for x in parts), other, 8)
    assert torch.equal(cut, whole)
    # The control: other chunks, of which the sums are rounded in other places.
    assert not torch.equal(other, whole)
    assert cases.error(other, whole) < 1e-2


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", DTYPES)
def test_what_was_not_written_is_not_seen(dtype: torch.dtype) -> None:
    attend, draw = cases.attend, cases.Draw("cuda", dtype)
    keys, values = cases.rows_of(draw, 4096, 2, 256, 1000)
    query, positions = draw(100, 8, 256), torch.arange(900, 1000, device="cuda")
    found = attend(query, keys, values, positions)
    assert found.isfinite().all()
    for garbage in (torch.inf, 3.0):
        keys[1000:], values[1000:] = garbage, garbage
        assert torch.equal(attend(query, keys, values, positions), found)
    # The control: the last row that is seen is another one, and only the last token sees it.
    values[999] += 1.0
    other = attend(query, keys, values, positions)
    assert torch.equal(other[:-1], found[:-1])
    assert not torch.equal(other[-1], found[-1])
