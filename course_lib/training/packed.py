"""Several documents in one sequence: a technique that needs no ranks, since one device has it too.

A short document does not fill a sequence, so several are packed into it, each closed by a token of its own. What stands
before that token is none of the next one's business: a query meets the keys of its own document alone. Rotary angles
stay as they are, since within a document differences of positions do.

trainer = Trainer(model, config, mesh=make_mesh(cp=4), apply=(context("ring"), packed(0), replicate()))
"""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from course_lib import comm
from course_lib.errors import four_parts
from course_lib.models.decoder import Decoder
from course_lib.parallel.sequence.shared import Documents, SharedSequence
from course_lib.training.setup import Setup, Technique


def packed(end: int) -> Technique:
    """Attention does not look beyond the token `end` that closes a document.

    Cost: under `context` an all-gather of the tokens' ends, a byte each; nothing else changes its way.
    Source: Llama Team 2024, The Llama 3 Herd of Models, section 3.2 (a mask between the documents of a sequence).
    Raises: ValueError for another model than a `Decoder`, before `context`, and under `stages`, whose first rank alone
        sees tokens.
    """

    def apply(setup: Setup) -> None:
        _check(setup)
        documents, before, shared = Documents(), setup.engine.ends.told, setup.shared_sequence

        def told(inputs: Tensor) -> None:
            before(inputs)
            ends = inputs == end
            documents.told(ends if shared is None else _of_all(ends, shared))

        setup.engine.ends.told = told
        if shared is None:
            _replace_attention(setup.model, documents)
        else:
            shared.documents = documents

    return apply


def _of_all(ends: Tensor, shared: SharedSequence) -> Tensor:
    """(B, S/p) -> (B, S), in the sequence's own order."""
    here = ends.byte().movedim(1, 0).contiguous()
    gathered = comm.all_gather(here, length=shared.cut.length, group=shared.group)
    return gathered[shared.cut.natural()].movedim(0, 1).bool()


def _replace_attention(model: nn.Module, documents: Documents) -> None:
    """Let positions meet within their documents in every layer."""

    def mix(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=documents.causal(), enable_gqa=True)

    assert isinstance(model, Decoder)
    for layer in model.layers:
        attention: Any = layer.get_submodule("attention")
        attention.mix = mix


def _check(setup: Setup) -> None:
    if not isinstance(setup.model, Decoder):
        rule, way_out = "it replaces attention where a Decoder mixes positions", "give a Decoder"
        raise ValueError(four_parts("packed", f"a {type(setup.model).__name__}", rule, way_out))
    if "stages" in setup.applied or setup.local.size("pp") > 1:
        rule, way_out = "the first stage alone sees tokens", "leave it out, or choose pp=1"
        raise ValueError(four_parts("packed", f"pp={setup.local.size('pp')}", rule, way_out))
    if setup.local.size("cp") > 1 and setup.shared_sequence is None:
        values, rule = "applied before context", "context decides how positions meet"
        raise ValueError(four_parts("packed", values, rule, "apply it after context"))
