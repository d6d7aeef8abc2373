"""Gradients averaged at a loss, told to `replicate`: which method, and what it needs to know of the trainer.

replicate(lossy=error_feedback(top_k(0.01)))
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch.distributed import ReduceOp

from course_lib import comm
from course_lib.errors import four_parts
from course_lib.less.compressor import Compressor
from course_lib.parallel.data import replicate as broadcast
from course_lib.parallel.data.buckets import Bucket
from course_lib.parallel.data.options import Plan
from course_lib.parallel.lossy.ef21 import EF21
from course_lib.parallel.lossy.exchange import Memories, Method, Talk
from course_lib.parallel.lossy.factors import PowerSGD
from course_lib.parallel.lossy.feedback import Compressed, ErrorFeedback
from course_lib.parallel.lossy.two_way import TwoWay
from course_lib.parallel.table import agreement
from course_lib.parallel.table.local import Local
from course_lib.parallel.table.mesh import ACROSS
from course_lib.training.kept import Apart
from course_lib.training.setup import Setup

Lossy = Callable[[Local], Method]  # the method, once it is known whose gradients they are


def error_feedback(compressor: Compressor) -> Lossy:
    """Compressed with a memory of what was left out (MEM-SGD): `parallel.lossy.feedback`."""
    return lambda local: ErrorFeedback(compressor)


def without_memory(compressor: Compressor) -> Lossy:
    """Compressed, and what is left out is lost: right for what is true on average, as `qsgd`."""
    return lambda local: Compressed(compressor)


def ef21(compressor: Compressor) -> Lossy:
    """Compressed differences to an estimate that all have: `parallel.lossy.ef21`."""
    return lambda local: EF21(compressor)


def double_squeeze(compressor: Compressor) -> Lossy:
    """Compressed on the way to a server and back, with a memory at both ends: `parallel.lossy.two_way`.

    Raises: ValueError for a compressor whose places both ends must draw.
    """
    return neolithic(compressor, rounds=1)


def neolithic(compressor: Compressor, rounds: int) -> Lossy:
    """The same with several messages, each of what the ones before left out.

    Raises: ValueError for fewer than one, and for a compressor whose places both ends must draw.
    """
    if rounds < 1:
        raise ValueError(four_parts("neolithic", f"rounds={rounds}", "something is sent", "give rounds >= 1"))
    if compressor.adds_up:
        operation = "double_squeeze" if rounds == 1 else "neolithic"
        rule, way_out = "a message on two ways says itself what it holds", "choose top_k, sign or qsgd"
        raise ValueError(four_parts(operation, f"{compressor}", rule, way_out))
    return lambda local: TwoWay(compressor, rounds)


def power_sgd(rank: int, *, remembers: bool = True, warm: bool = True) -> Lossy:
    """Two narrow factors of each matrix: `parallel.lossy.factors`.

    Raises: ValueError for a rank below 1; at wrapping, where matrices are cut along "tp".
    """
    if rank < 1:
        raise ValueError(four_parts("power_sgd", f"rank={rank}", "a factor has a column", "give rank >= 1"))

    def made(local: Local) -> Method:
        if local.size("tp") > 1:
            values, rule = f"tp={local.size('tp')}", "the factors are a whole matrix's"
            raise ValueError(four_parts("power_sgd", values, rule, "choose tp=1, or error_feedback(top_k(…))"))
        shapes = {name: tuple(parameter.shape) for name, parameter in local.parameters.items()}
        return PowerSGD(rank, shapes, remembers, warm)

    return made


def begin_lossy(setup: Setup, lossy: Lossy | Compressor) -> Callable[[Plan, Bucket], comm.Work | None]:
    """Choose the axis, and give the hook by which buckets are averaged; it works in backward, and waits.

    Gradients are first averaged exactly over ranks that are near: along "cp", and where there is an axis "across", over
    all of a cluster. Then the first of them exchanges for all, and tells them what came, so that one copy crosses the
    wire between clusters.
    """
    local = setup.local
    axis = setup.far_axis("lossy")
    group = local.group(axis)
    if axis == ACROSS:  # along "dp" it is `DistributedDataParallel` that does it
        broadcast.broadcast_state(setup.model, group, local.name_of(**{**local.at, axis: 0}))
    method = (lossy if callable(lossy) else without_memory(lossy))(local)
    agreement.same_model("lossy", setup.model, {"method": method}, group)
    memory = Memories(method.rules)
    near = [one for one in setup.data_axes(experts=False) if one != axis]
    exactly = setup.group_along(near) if near else None
    speaker = local.name_of(**local.at) if exactly is None else dist.get_process_group_ranks(exactly)[0]
    speaks = speaker == local.name_of(**local.at)
    setup.apart = Apart(axis=axis, memory=memory, group=group, speaks=speaks)
    names = {id(parameter): name for name, parameter in local.parameters.items()}
    talk = Talk(group)

    def hook(plan: Plan, bucket: Bucket) -> None:
        if exactly is not None:
            comm.all_reduce_(bucket.flat, op=ReduceOp.AVG, algorithm=plan.algorithm, group=exactly)
        if speaks:
            exchange(bucket)
        if exactly is not None:
            bucket.flat.copy_(comm.broadcast(bucket.flat, src=speaker, group=exactly))

    def exchange(bucket: Bucket) -> None:
        views = dict(zip((names[id(parameter)] for parameter in bucket.parameters), bucket.views, strict=True))
        with torch.no_grad():
            rows = {name: view.flatten() for name, view in views.items()}
            for name, mean in method.average(rows, talk, memory).items():
                views[name].copy_(mean.view_as(views[name]))

    return hook
