"""What a training run says of averages that lose something: across, lossy, local, outer and gossip."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from course_lib.cli.compose import refuse
from course_lib.cli.train_settings import LESS
from course_lib.less.compressor import Compressor
from course_lib.less.largest_values import top_k
from course_lib.less.random_rounding import qsgd
from course_lib.less.random_values import rand_k
from course_lib.less.scaled_sign import sign
from course_lib.less.topologies import mixing
from course_lib.training.gossip_technique import gossip
from course_lib.training.local_technique import Nesterov, local
from course_lib.training.lossy_technique import Lossy, double_squeeze, ef21, error_feedback, neolithic, power_sgd
from course_lib.training.setup import Technique

COMMAND = "train"
_BUCKET = 512  # numbers that share a norm in QSGD
# What stands behind each word: how it is written, and what its numbers make. Who sends the largest remembers the rest.
_METHODS: dict[str, tuple[str, Callable[..., Lossy | Compressor]]] = {
    "top_k": ("top_k:0.01", lambda fraction: error_feedback(top_k(fraction))),
    "rand_k": ("rand_k:0.01", lambda fraction: error_feedback(rand_k(fraction, scaled=False))),
    "sign": ("sign", lambda: error_feedback(sign())),
    "qsgd": ("qsgd:16", lambda levels: qsgd(_whole("qsgd", levels), _BUCKET)),
    "power_sgd": ("power_sgd:4", lambda rank: power_sgd(_whole("power_sgd", rank))),
    "double_squeeze": ("double_squeeze:0.01", lambda fraction: double_squeeze(top_k(fraction))),
    "neolithic": (
        "neolithic:0.05:2",
        lambda fraction, rounds: neolithic(top_k(fraction), _whole("neolithic", rounds)),
    ),
    "ef21": ("ef21:0.01", lambda fraction: ef21(top_k(fraction))),
}


def check(values: Mapping[str, Any]) -> None:
    """Refuse words that say nothing, and what does not fit the degrees, the engine or each other.

    Raises: ValueError.
    """
    given = {one.name: values[one.name] for one in LESS.settings if values[one.name] != one.default}
    if not given:
        return
    name, value = next(iter(given.items()))
    if values["engine"] == "torch":
        rule = "PyTorch's engine averages gradients exactly here"
        refuse(COMMAND, f"engine=torch with {name}={value}", rule, f"choose engine=own, or leave {name} out")
    _check_across(values)
    far = [name for name in ("lossy", "local", "gossip") if values[name] is not None]
    if len(far) > 1:
        both = " and ".join(f"{name}={values[name]}" for name in far)
        refuse(COMMAND, both, "copies come together in one way", f"leave one of {', '.join(far)} out")
    if values["outer"] is not None and values["local"] is None:
        rule, way_out = "it is the step from one meeting to the next", "give local=50, or leave outer out"
        refuse(COMMAND, f"outer={values['outer']} without local", rule, way_out)
    if not far:
        rule, way_out = "something says how clusters come together", "give lossy, local or gossip, or leave across out"
        refuse(COMMAND, f"across={values['across']}", rule, way_out)
    _check_sharing(values, far[0])
    read_lossy(values["lossy"])
    _read_outer(values["outer"])
    if values["gossip"] is not None:
        mixing(values["gossip"], _far_ranks(values))


def _check_across(values: Mapping[str, Any]) -> None:
    across, dp, ep = values["across"], values["dp"], values["ep"]
    if dp % (across * ep):
        parts = f"across={across} x ep={ep}" if ep > 1 else f"across={across}"
        refuse(COMMAND, f"{parts} with dp={dp}", "each cluster has as many copies", f"give a dp that {parts} divides")


def _check_sharing(values: Mapping[str, Any], name: str) -> None:
    """Whoever shares weights along dp cannot have its own there, and whose gradients are in pieces sends no whole."""
    given = f"{name}={values[name]}"
    if _far_ranks(values) == 1:
        axis = "across" if values["across"] > 1 else "dp"
        refuse(COMMAND, f"{given} with {axis}=1", "one copy has nobody to meet", "give dp >= 2, or across >= 2")
    if values["zero_stage"] and (name == "lossy" or values["across"] == 1):
        rule = "gradients are averaged whole" if name == "lossy" else "each copy has weights of its own along dp"
        way_out = "choose zero_stage=0" if name == "lossy" else "choose zero_stage=0, or give across >= 2"
        refuse(COMMAND, f"{given} with zero_stage={values['zero_stage']}", rule, way_out)
    if name != "lossy" and values["optimizer"] == "adamw8bit":
        rule, way_out = "a checkpoint has the copies' mean, and codes have none", "choose optimizer=adamw"
        refuse(COMMAND, f"{given} with optimizer=adamw8bit", rule, way_out)
    if values["lossy"] is not None and str(values["lossy"]).startswith("power_sgd") and values["tp"] > 1:
        rule, way_out = "its factors are a whole matrix's", "choose tp=1, or lossy=top_k:0.01"
        refuse(COMMAND, f"{given} with tp={values['tp']}", rule, way_out)


def _far_ranks(values: Mapping[str, Any]) -> int:
    """How many come together at a loss: clusters, or copies."""
    return int(values["across"] if values["across"] > 1 else values["dp"] // values["ep"])


def read_lossy(value: Any) -> Lossy | Compressor | None:
    """The method behind a word with its numbers, as top_k:0.01.

    Raises: ValueError for another word, and for numbers that it does not take.
    """
    if value is None:
        return None
    word, *numbers = str(value).split(":")
    written, make = _METHODS.get(word, ("", None))
    known = ", ".join(pattern for pattern, _ in _METHODS.values())
    if make is None or written.count(":") != len(numbers) or not all(map(_is_number, numbers)):
        refuse(
            COMMAND, f"lossy={value}", "it is a word that says what gradients lose, with its numbers", f"say {known}"
        )
    return make(*map(float, numbers))


def _read_outer(value: Any) -> Nesterov | None:
    """The outer step, written rate:momentum.

    Raises: ValueError for something else.
    """
    if value is None:
        return None
    numbers = str(value).split(":")
    if len(numbers) != 2 or not all(map(_is_number, numbers)):
        refuse(COMMAND, f"outer={value}", "it is a learning rate and a momentum", "say outer=0.7:0.9")
    rate, momentum = map(float, numbers)
    if not (rate > 0 and 0 <= momentum < 1):
        refuse(COMMAND, f"outer={value}", "a rate is above 0, a momentum from 0 to below 1", "say outer=0.7:0.9")
    return Nesterov(rate, momentum)


def techniques(values: Mapping[str, Any]) -> list[Technique]:
    """What lets copies have weights of their own, if anything does."""
    if values["local"] is not None:
        return [local(values["local"], _read_outer(values["outer"]))]
    return [gossip(values["gossip"])] if values["gossip"] is not None else []


def averages_exactly(values: Mapping[str, Any]) -> bool:
    """Whether gradients are averaged along dp in each step, inside a cluster if there are any."""
    return values["across"] > 1 or (values["local"] is None and values["gossip"] is None)


def _whole(word: str, number: float) -> int:
    if number != int(number):
        refuse(COMMAND, f"lossy={word}:{number}", "it is a whole number", f"say {word}:{int(number) or 1}")
    return int(number)


def _is_number(text: str) -> bool:
    return re.fullmatch(r"\d+(\.\d+)?(e-?\d+)?", text) is not None
