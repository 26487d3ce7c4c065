"""Extends what torch.distributed does for the backends that it knows by name to lockstep.

torch refuses, or passes over, every other backend in dist.monitored_barrier(), _set_pg_timeout() and the sequence
numbers of a ProcessGroup, though the Backend interface has all three. extend() wraps each
in a function of ours: it serves groups whose CPU backend is lockstep, and passes all others to torch, as before.
"""

import functools
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

_CPU = torch.device("cpu")
_LONGEST = timedelta(days=36500)  # torch's own conversion overflows on timedelta.max


def _backend_of(group):
    """The lockstep Backend of a group; None if it has none."""
    if group is None:
        group = distributed_c10d._get_default_group()
    if not isinstance(group, dist.ProcessGroup) or _CPU not in group._device_types:
        return None
    backend = group._get_backend(_CPU)
    backend = getattr(backend, "wrapped_pg", backend)  # TORCH_DISTRIBUTED_DEBUG=DETAIL
    return backend if backend.name() == "lockstep" else None


def _monitored_barrier(torchs):
    @functools.wraps(torchs)
    def monitored_barrier(group=dist.GroupMember.WORLD, timeout=None, wait_all_ranks=False):
        backend = _backend_of(group)
        if backend is None:
            return torchs(group, timeout, wait_all_ranks)
        if isinstance(timeout, float):
            timeout = timedelta(seconds=timeout)
        if timeout is None:
            timeout = backend.options._timeout
        distributed_c10d._check_valid_timeout(timeout)
        return backend.monitored_barrier(min(timeout, _LONGEST), wait_all_ranks)

    return monitored_barrier


def _set_pg_timeout(torchs):
    @functools.wraps(torchs)
    def _set_pg_timeout(timeout, group=None):
        backend = _backend_of(group)
        if backend is None:
            return torchs(timeout, group)
        distributed_c10d._check_valid_timeout(timeout)
        group = group or distributed_c10d._get_default_group()
        group.set_timeout(min(timeout, _LONGEST))

    return _set_pg_timeout


def _of_group(torchs, name):
    @functools.wraps(torchs)
    def method(group):
        backend = _backend_of(group)
        return torchs(group) if backend is None else getattr(backend, name)()

    return method


def extend():
    dist.monitored_barrier = distributed_c10d.monitored_barrier = _monitored_barrier(dist.monitored_barrier)
    distributed_c10d._set_pg_timeout = _set_pg_timeout(distributed_c10d._set_pg_timeout)
    for name in ("_get_sequence_number_for_group", "_set_sequence_number_for_group"):
        setattr(dist.ProcessGroup, name, _of_group(getattr(dist.ProcessGroup, name), name))
