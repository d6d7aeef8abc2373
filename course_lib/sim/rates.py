"""How fast a machine with its software is: what the constants say of one GPU, link, number format and stack."""

from __future__ import annotations

from dataclasses import dataclass

from course_lib.sim.policies import Value


@dataclass(frozen=True, kw_only=True)
class Rates:
    """Rates of one machine with its software; each is one number, or one for each policy.

    Units: FLOP/s, bytes/s, seconds; `inside` and `between` are what one GPU reaches on NVLink and on its share of the
    node's network.
    """

    matmul_flops_per_s: Value  # in the format of the layers' matrices
    head_flops_per_s: Value  # of head and loss, which stay in bf16
    size_penalty: Value  # elements: a matmul of M x K x N takes (1 + penalty (1/M + 1/K + 1/N)) times as long
    odd_width: Value  # factor on matmuls' time where a rank's width is no multiple of 64: tiles stay half empty
    attention_flops_per_s: Value  # forward
    attention_knee: Value  # tokens: short sequences take (1 + knee/s) times as long
    small_head: Value  # factor on attention's time for heads of at most 64
    odd_head: Value  # the same where a head's size is no multiple of 8, which tensor cores ask for
    keeps_scores: Value  # 1 for an attention that writes its scores to memory, 0 for a flash kernel
    score_s: Value  # of memory traffic for each score that is kept, forward
    pointwise_bytes_per_s: Value
    norm_numbers: Value  # that norms written in Python move beyond those in one kernel, of each token and feature
    cast_bytes: Value  # extra bytes for each number that FP8 casts
    tp_exposed: Value  # share of tensor-parallel time that nothing hides
    cp_exposed: Value
    dp_exposed: Value
    pp_exposed: Value
    gradient_bytes: Value  # of one number in a reduction over dp
    inside_bytes_per_s: Value
    pair_bytes_per_s: Value  # of two GPUs alone
    between_bytes_per_s: Value
    domain: Value  # GPUs that NVLink joins
    inside_alpha_s: Value
    ring_alpha_s: Value  # of one rank of a ring in one call
    optimizer_bytes_per_s: Value
    host_bytes_per_s: Value  # between a GPU and the host's memory
    accumulated_s: Value  # of each gradient that a micro-batch adds to the sum of those before
    layer_s: Value  # of a layer and micro-batch, however small: launches, half-empty waves, short messages
    expert_layer_s: Value  # of host work for each layer with experts and micro-batch
    step_s: Value  # once a step: data, host, clipping
    microbatch_s: Value  # for each micro-batch
    node_slowdown: Value  # share by which a step grows with each doubling of the nodes
    peak_flops_per_s: Value  # dense bf16 data sheet, for utilisation alone
