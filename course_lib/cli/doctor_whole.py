"""Which pieces of a model of transformers every rank along tp would have whole: what its plan does not cut."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

from torch import nn

from course_lib.cli import train_model
from course_lib.cli.train_config import TrainRun
from course_lib.config.parallel import Piece
from course_lib.models.made import piece_of
from course_lib.parallel.tensors.plan import plan_for
from course_lib.parallel.tensors.roles import causal_model
from course_lib.parallel.tensors.styles import styles_of

_MATRIX_DIMS = (2, 3)  # experts may lie in one tensor


def whole_pieces(run: TrainRun) -> tuple[frozenset[Piece], list[str]]:
    """The pieces, and why, in the plan's words; our own decoder is cut in all.

    A piece of which any matrix stays whole counts as whole.
    """
    if run.folder is None:
        return frozenset(), []
    model = train_model.base_on_meta(run)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        styles = styles_of(model, plan_for(model))
    cut = {id(p) for name in styles for p in model.get_submodule(name).parameters()}
    whole = frozenset(piece for piece, p in _pieces(model) if id(p) not in cut)
    return whole, [str(one.message).partition("whole: ")[2] for one in said]


def _pieces(model: nn.Module) -> Iterator[tuple[Piece, nn.Parameter]]:
    """The matrices, each with what it is a piece of; routers and tables of positions are cut by nobody."""
    found = causal_model(model)
    assert found is not None
    yield "embedding", found[1].get_input_embeddings().weight
    yield "head", found[1].get_output_embeddings().weight
    for name, parameter in model.named_parameters():
        in_layer = any(word.isdigit() for word in name.split("."))
        if parameter.dim() not in _MATRIX_DIMS or not in_layer:
            continue
        piece = piece_of(name, tuple(parameter.shape))
        if piece == "ffn":
            yield "experts" if "experts" in name or parameter.dim() == max(_MATRIX_DIMS) else "ffn", parameter
        elif piece == "attention":
            yield "attention", parameter
        elif piece == "shared_ffn":
            yield "shared_ffn", parameter
