"""Scratch of a group of processes: who owns it, what it begins with, when it is given back."""

from __future__ import annotations

import gc
import sys
import types

import pytest
import torch
from peers import free_port, group_of_gpus

from diglot.backends import group_scratch as module
from diglot.backends.plans import GROUP, GROUP_HEADER_BYTES, Scratch
from diglot.backends.scratch import held_bytes, provide

GPU = torch.device("cuda", 0)


class Group:
    """A process group as far as scratch goes."""

    group_name = "tensor-parallel"

    def __init__(self, ranks=2):
        self.ranks = ranks

    def size(self):
        return self.ranks


@pytest.fixture
def world(monkeypatch):
    """A GPU and a group of two ranks, whose symmetric memory is the CPU's."""

    class World:
        stream = 7
        captured = False
        multicast = 0
        meetings = 0

    state = World()
    state.group = Group()

    def rendezvous(tensor, name):
        assert name == state.group.group_name
        state.meetings += 1
        return types.SimpleNamespace(
            multicast_ptr=state.multicast,
            buffer_ptrs=[tensor.data_ptr(), 0x7000],
            barrier=lambda: None,
        )

    symmetric = types.ModuleType("torch.distributed._symmetric_memory")
    symmetric.empty = lambda n, dtype, device: torch.full((n,), 255, dtype=dtype)
    symmetric.rendezvous = rendezvous

    def resolve(name):
        if state.group is None or name != state.group.group_name:
            raise RuntimeError(f"Could not resolve the process group {name}")
        return state.group

    import torch.distributed

    monkeypatch.setitem(sys.modules, symmetric.__name__, symmetric)
    monkeypatch.setattr(torch.distributed, "_symmetric_memory", symmetric, raising=False)
    monkeypatch.setattr(torch._C._distributed_c10d, "_resolve_process_group", resolve)
    monkeypatch.setattr(module, "stream_number", lambda index: state.stream)
    monkeypatch.setattr(module, "is_captured", lambda device: state.captured)
    monkeypatch.setattr(module, "_buffers", {})
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: types.SimpleNamespace(
        synchronize=lambda: None))  # fmt: skip
    monkeypatch.setenv("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")
    return state


def need(count, group="tensor-parallel"):
    return Scratch(count, count, GROUP, group)


def test_a_groups_scratch_begins_with_all_ranks_addresses(world):
    scratch = provide(need(2048), GPU)
    assert scratch[:16].view(torch.int64).tolist() == [scratch.data_ptr(), 0x7000]
    assert scratch.numel() == 2048 and not scratch[16:].any()


def test_ranks_meet_once_for_a_stream_and_size(world):
    first = provide(need(2048), GPU)
    assert provide(need(1024), GPU) is first and world.meetings == 1
    assert provide(need(4096), GPU).numel() == 4096 and world.meetings == 2
    world.stream = 8
    assert provide(need(1024), GPU) is not first and world.meetings == 3
    assert held_bytes()["groups"] == held_bytes(0)["groups"] == 4096 + 1024


def test_a_destroyed_groups_scratch_is_freed(world):
    first = provide(need(2048), GPU).data_ptr()
    world.group = Group()  # another group of the same name
    gc.collect()
    assert held_bytes()["groups"] == 0
    provide(need(2048), GPU)
    assert world.meetings == 2 and first
    world.group = None
    with pytest.raises(RuntimeError, match="process group"):
        provide(need(2048), GPU)


def test_what_has_no_scratch_is_told_so(world):
    with pytest.raises(RuntimeError, match="not on the CPU"):
        provide(need(2048), torch.device("cpu"))
    world.captured = True
    with pytest.raises(RuntimeError, match="captured: run the op once before"):
        provide(need(2048), GPU)
    world.captured = False
    kept = provide(need(2048), GPU)
    world.captured = True
    assert provide(need(2048), GPU) is kept
    world.captured, world.multicast = False, 1
    with pytest.raises(RuntimeError, match="DISABLE_MULTICAST"):
        provide(need(4096), GPU)
    world.group.ranks = module.MOST_RANKS + 1
    with pytest.raises(RuntimeError, match=f"{GROUP_HEADER_BYTES // 8} ranks"):
        provide(need(4096), GPU)


def _write_to_peers(rank, ranks, port):
    """Each rank writes its number to the place of its number in every rank's buffer."""
    with group_of_gpus(rank, ranks, port) as device:
        name = torch.distributed.group.WORLD.group_name
        scratch = provide(Scratch(4096, 4096, GROUP, name), device)
        addresses = scratch[: 8 * ranks].view(torch.int64).tolist()
        assert addresses[rank] == scratch.data_ptr() and len(set(addresses)) == ranks
        assert not scratch[GROUP_HEADER_BYTES:].any()
        handle = module._buffers[name, rank, module.stream_number(rank)].handle
        torch.cuda.synchronize()
        handle.barrier()  # no rank writes before all have looked
        for peer in range(ranks):
            remote = handle.get_buffer(peer, (4096,), torch.uint8)
            assert remote.data_ptr() == addresses[peer]
            remote[GROUP_HEADER_BYTES + rank] = rank + 1
        handle.barrier()
        numbers = scratch[GROUP_HEADER_BYTES : GROUP_HEADER_BYTES + ranks].tolist()
        assert numbers == list(range(1, ranks + 1))
        assert provide(Scratch(1024, 1024, GROUP, name), device) is scratch
        assert held_bytes(rank)["groups"] == 4096


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="two GPUs are needed")
def test_ranks_reach_each_others_scratch():
    port = free_port()
    torch.multiprocessing.spawn(_write_to_peers, (2, port), nprocs=2)
