"""Errors of what saves memory on one device or several: it computes twice, rounds, or stands beside other weights."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any
from unittest.mock import patch
from weakref import WeakKeyDictionary

from torch import Tensor, nn

from course_lib.savers import lora, quantised_linear
from course_lib.savers.frozen_map import FrozenMap, weight_of
from course_lib.savers.loss_scaler import LossScaler
from course_lib.savers.one_call import LayerCall
from course_lib.verify.museum.bug import PULLS, Bug, Issue
from course_lib.verify.museum.data_parallel import together

_unscale, _in_codes = LossScaler.unscale_, quantised_linear.NF4Linear.__init__
_before_codes: WeakKeyDictionary[nn.Module, Tensor] = WeakKeyDictionary()


def _fresh_numbers(_: LayerCall) -> AbstractContextManager[None]:
    """In backward, dropout draws once more."""
    return nullcontext()


def _asks_nobody(scaler: LossScaler, gradients: Iterable[Tensor], _: Any = None) -> None:
    """Each rank skips when its own piece overflows."""
    _unscale(scaler, gradients)


def _remember(module: quantised_linear.NF4Linear, linear: nn.Linear) -> None:
    _in_codes(module, linear)
    _before_codes[module] = linear.weight.detach()


def _weight_before_codes(base: FrozenMap) -> Tensor:
    """What lay in the folder: other numbers than those that the adapter has learnt beside."""
    return _before_codes[base] if isinstance(base, quantised_linear.NF4Linear) else weight_of(base)


_EXHIBITS = (
    Bug(
        name="fresh_masks",
        title="Recomputed layers drop other numbers in backward than the loss has seen",
        patch=partial(patch.object, LayerCall, "_same_numbers", _fresh_numbers),
        where=Issue(
            title="Preserve RNG state across activation-checkpoint recompute when dropout is active",
            link=PULLS.format("allenai/OLMo-core", 828),
        ),
        first_rung="gradients",
        looks="the loss falls, to where more dropout would have let it fall; without recomputation it falls further",
    ),
    Bug(
        name="scaler_not_shared",
        title="Where ranks hold pieces of the gradients, one of them overflows and skips a step alone",
        patch=partial(patch.object, LossScaler, "unscale_", _asks_nobody),
        where=Issue(
            title="[FSDP] sharded grad scaler: copy found_inf after waiting on async reduce_all",
            link=PULLS.format("pytorch/pytorch", 115710),
        ),
        first_rung="parameters",
        looks="the gradients of every step are right, and the loss falls: a part of the weights is a step behind",
    ),
    Bug(
        name="merged_before_codes",
        title="An adapter that was trained beside codes is merged onto the weights from before",
        patch=together(
            partial(patch.object, quantised_linear.NF4Linear, "__init__", _remember),
            partial(patch.object, lora, "weight_of", _weight_before_codes),
        ),
        where=Issue(
            title="Fix 4bit QLoRA merged_16bit using the wrong base (W16 vs dequant(W4)) for Falcon-H1",
            link=PULLS.format("unslothai/unsloth-zoo", 810),
        ),
        first_rung="output",
        looks="the merged model writes nearly what the trained one wrote, and trains on; every weight is off a little",
    ),
)
SAVER_BUGS = {bug.name: bug for bug in _EXHIBITS}
