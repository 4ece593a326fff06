"""Layout and arena: one allocation for all state, aligned, disjoint, and never moving.

A capsule is one contiguous copy of the state section, so nothing may lie outside it, overlap in it
or depend on the order in which it was made.
"""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flashrt_ros.errors import InvalidArgumentError, NoMemoryError, SpecError, UnsupportedError
from flashrt_ros.runtime.buffers import ALIGNMENT, Arena, BufferSpec, Role, StateLayout
from flashrt_ros.runtime.device import open_device
from flashrt_ros.runtime.pool import SlotPool

DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool, torch.float64)
specs = st.lists(
    st.builds(
        BufferSpec,
        st.from_regex(r"[a-z][a-z0-9_]{0,6}(\.[a-z0-9_]{1,4}){0,2}", fullmatch=True),
        st.lists(st.integers(1, 5), max_size=3).map(tuple),
        st.sampled_from(DTYPES),
        st.sampled_from(list(Role)),
    ),
    max_size=12,
    unique_by=lambda spec: spec.name,
)
STATE = BufferSpec("zz.longest", (3,), torch.float32, Role.STATE)


@given(specs)
def test_buffers_are_aligned_disjoint_and_complete(declared: list[BufferSpec]) -> None:
    layout = StateLayout([*declared, STATE])
    arena = Arena(layout, open_device("cpu"))
    sections = (
        (layout.state, layout.fixed_bytes, arena.state, arena.fixed),
        (layout.inputs, layout.input_bytes, arena.inputs, arena.input_section),
        (layout.outputs, layout.output_bytes, arena.outputs, arena.output_section),
    )
    assert sum(len(slots) for slots, *_ in sections) == len(declared) + 1
    for slots, size_bytes, views, section in sections:
        assert section.numel() == size_bytes
        end = 0
        for slot in slots:
            view = views[slot.spec.name]
            assert slot.offset % ALIGNMENT == 0
            assert slot.offset >= end
            end = slot.offset + slot.size_bytes
            assert slot.size_bytes == math.prod(slot.spec.shape) * slot.spec.dtype.itemsize
            assert view.data_ptr() == section.data_ptr() + slot.offset
            assert view.data_ptr() % ALIGNMENT == 0
            assert (tuple(view.shape), view.dtype) == (slot.spec.shape, slot.spec.dtype)
            assert not view.any()
        assert end <= size_bytes


@given(specs)
def test_each_buffer_holds_what_was_written_to_it(declared: list[BufferSpec]) -> None:
    arena = Arena(StateLayout([*declared, STATE]), open_device("cpu"))
    views = {**arena.state, **arena.inputs, **arena.outputs}
    for number, name in enumerate(views):
        views[name].fill_(number % 2 if views[name].dtype == torch.bool else number)
    for number, (name, view) in enumerate(views.items()):
        expected = bool(number % 2) if view.dtype == torch.bool else number
        assert (view == expected).all(), name


def test_state_is_ordered_as_declared() -> None:
    names = ["b.2", "a", "c"]
    layout = StateLayout(BufferSpec(n, (1,), torch.float32, Role.STATE) for n in names)
    assert [slot.spec.name for slot in layout.state] == names
    assert [slot.offset for slot in layout.state] == [0, ALIGNMENT, 2 * ALIGNMENT]
    assert layout.fixed_bytes == 3 * ALIGNMENT


def test_views_are_read_only_mappings() -> None:
    arena = Arena(StateLayout([STATE]), open_device("cpu"))
    with pytest.raises(TypeError):
        arena.state[STATE.name] = torch.zeros(3)  # type: ignore[index]


def test_names_must_be_unique_whatever_the_role() -> None:
    twin = BufferSpec(STATE.name, (1,), torch.int64, Role.INPUT)
    with pytest.raises(SpecError, match=r"'zz\.longest' is declared twice"):
        StateLayout([STATE, twin])


def test_a_layout_needs_state() -> None:
    with pytest.raises(SpecError, match="at least one buffer of role state"):
        StateLayout([BufferSpec("x", (1,), torch.float32, Role.INPUT)])


def test_find_names_what_there_is() -> None:
    with pytest.raises(SpecError, match=r"no buffer 'y' is declared; declared are: zz.longest"):
        StateLayout([STATE]).find("y")


@pytest.mark.parametrize("name", ["", "A", "a..b", ".a", "a.", "1a", "a b", "a-b"])
def test_bad_buffer_names(name: str) -> None:
    with pytest.raises(SpecError, match="dotted lower-case"):
        BufferSpec(name, (1,), torch.float32, Role.STATE)


def test_bad_shapes() -> None:
    with pytest.raises(SpecError, match=r"found shape \(0,\)"):
        BufferSpec("a", (0,), torch.float32, Role.STATE)


def test_pool_slots_are_disjoint_and_come_back() -> None:
    pool = SlotPool(open_device("cpu"), 512, 2000)
    assert pool.slots == 3
    segments = [pool.take() for _ in range(3)]
    for number, segment in enumerate(segments):
        segment.bytes.fill_(number + 1)
    assert [int(s.bytes.float().mean()) for s in segments] == [1, 2, 3]
    with pytest.raises(NoMemoryError, match="all 3 slots of 512 bytes"):
        pool.take()
    segments[1].retain()
    assert segments[1].release() == 0
    assert pool.bytes_used == 3 * 512
    assert segments[1].release() == 512
    assert pool.take().bytes.data_ptr() == segments[1].bytes.data_ptr()


@pytest.mark.parametrize("name", ["gpu", "", "mps", "cpu:x"])
def test_unknown_devices(name: str) -> None:
    with pytest.raises(InvalidArgumentError, match="expected 'cpu', 'cuda' or 'cuda:0'"):
        open_device(name)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_cuda_without_cuda_says_what_to_do() -> None:
    with pytest.raises(UnsupportedError, match="use 'cpu', or install a CUDA build"):
        open_device("cuda")
