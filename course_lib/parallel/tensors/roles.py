"""The plan of a causal language model of `transformers` that nobody listed.

Its configuration may say which maps are cut by column and which by row (`base_model_tp_plan`); else their names do.
Neither is believed: `Block` looks at the widths. Before a norm over all heads, as OLMo2 has it, their plan gathers the
features; ours leaves them cut and lets the norm add up its squares.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from torch import nn

from course_lib.models.patterns import named_by, pattern_of
from course_lib.parallel.tensors.block import Block
from course_lib.parallel.tensors.styles import Style

_Role = Literal["column", "row"]
_NAMES: Mapping[str, _Role] = {
    **dict.fromkeys(("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "fc1", "fc_in", "c_fc"), "column"),
    **dict.fromkeys(("o_proj", "out_proj", "dense", "down_proj", "fc2", "fc_out", "c_proj"), "row"),
}
_THEIR_STYLES: Mapping[str, _Role] = {
    "colwise": "column",
    "colwise_gather_output": "column",
    "rowwise": "row",
    "rowwise_split_input": "row",
}
_LARGE = 0.01  # of all parameters
_ODD_END = "it is no plain Embedding or Linear, or is tied to more than one of each"


def causal_model(model: nn.Module) -> tuple[str, Any] | None:
    """The model of `transformers` that this one is or contains, and its name there."""
    found = ((name, one) for name, one in model.named_modules() if hasattr(one, "get_output_embeddings"))
    return next(found, None)


def derived(model: nn.Module) -> tuple[dict[str, Style], dict[str, str]]:
    """A plan for a model that is or contains one of `transformers`, and why large matrices stay whole, by pattern."""
    roles = _roles(model)
    styles, (_, theirs) = _ends(model), _found(model)
    ends = (theirs.get_input_embeddings(), theirs.get_output_embeddings())
    reasons = {pattern_of(name): _ODD_END for name, module in model.named_modules() if module in ends}
    for name, module in model.named_modules():
        own: dict[str, Style] = {}
        for child, _ in module.named_children():
            if _joined(name, child) in roles:
                own[child] = roles[_joined(name, child)]
        if not own:
            continue
        columns = [child for child in own if own[child] == "column"]
        rows = [child for child in own if own[child] == "row"]
        block = Block(module, columns, rows)
        problem = next(block.problems(), None)
        if problem is not None:
            reasons[pattern_of(name)] = problem
            continue
        for child, style in {**own, **block.norms}.items():
            styles[_joined(name, child)] = style
    whole = {}
    for pattern in large_and_whole(model, styles):
        around = pattern.rpartition(".")[0]
        whole[pattern] = reasons.get(pattern) or reasons.get(around, "nothing says how it could be cut")
    return _as_patterns(model, styles), whole


def large_and_whole(model: nn.Module, cut: Iterable[str]) -> dict[str, float]:
    """The matrices outside the modules that are cut, by pattern, with their share of the model where it is large."""
    parts = {id(parameter) for name in cut for parameter in model.get_submodule(name).parameters()}
    everything = sum(parameter.numel() for parameter in model.parameters())
    shares = Counter[str]()
    for name, parameter in model.named_parameters():
        if id(parameter) not in parts and parameter.dim() > 1:
            shares[pattern_of(name.removesuffix(".weight"))] += parameter.numel()
    return {pattern: numbers / everything for pattern, numbers in shares.items() if numbers >= _LARGE * everything}


def _roles(model: nn.Module) -> dict[str, _Role]:
    """The part that each linear map plays, by its name in the model."""
    names, (outer, theirs) = [name for name, _ in model.named_modules()], _found(model)
    inner = next(name for name, module in theirs.named_modules() if module is theirs.base_model)
    plan = getattr(theirs.base_model.config, "base_model_tp_plan", None)
    found: dict[str, _Role] = {}
    if not plan:
        for name in names:
            own = name.rpartition(".")[2]
            if own in _NAMES:
                found[name] = _NAMES[own]
        return found
    for pattern, style in plan.items():
        if style in _THEIR_STYLES:
            for name in named_by(_joined(outer, inner, pattern), names):
                found[name] = _THEIR_STYLES[style]
    return found


def _ends(model: nn.Module) -> dict[str, Style]:
    """The embedding by its rows, and so the head; what one shares is cut by all that have it, or by none."""
    _, theirs = _found(model)
    embedding, head = theirs.get_input_embeddings(), theirs.get_output_embeddings()
    found: dict[nn.Module, Style] = {}
    if type(head) is nn.Linear:
        found[head] = "logits"
    if type(embedding) is nn.Embedding and embedding.max_norm is None:
        found[embedding] = "vocabulary"
    for module in list(found):
        own = {*module.parameters()}
        owners = {other for other in model.modules() if own & {*other.parameters(recurse=False)}}
        if not owners <= found.keys():
            del found[module]
    return {name: found[module] for name, module in model.named_modules() if module in found}


def _as_patterns(model: nn.Module, styles: Mapping[str, Style]) -> dict[str, Style]:
    """One entry for equal modules of all layers, where there is nothing else of that pattern."""
    names = [name for name, _ in model.named_modules()]
    plan: dict[str, Style] = {}
    for name, style in styles.items():
        alike = {styles.get(other) for other in named_by(pattern_of(name), names)} == {style}
        plan[pattern_of(name) if alike else name] = style
    return plan


def _found(model: nn.Module) -> tuple[str, Any]:
    found = causal_model(model)
    assert found is not None
    return found


def _joined(*parts: str) -> str:
    return ".".join(part for part in parts if part)
