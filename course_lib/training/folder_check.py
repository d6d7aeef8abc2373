"""Whether the weights in a folder of Hugging Face are those of a model: opened and compared, before anything is read.

Index, files, names, shapes and kinds of numbers stand in tables, which a moment is enough for, however large the
model is. Numbers are read of one kind alone: of two tables that the model has as one, up to where they differ.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from course_lib.errors import four_parts
from course_lib.models.bridge import Link, links_of, ties_of
from course_lib.models.expert_files import Piece
from course_lib.parallel.table.agreement import listing
from course_lib.parallel.table.layout import first_names

FILE, INDEX = "model.safetensors", "model.safetensors.index.json"
_COMPUTED = "rotary_emb.inv_freq"  # angles that old files have, and the model computes
_FLOATS = ("F64", "F32", "F16", "BF16")
_COMPARED = 2**20  # numbers of two tables at a time
_ADDED_BY = {"_orig_mod": "torch.compile", "module": "DistributedDataParallel", "base_model": "an adapter"}
_ANEW = "save it once more by `save_pretrained`"


class FolderProblem(ValueError):
    """Why a folder's weights are not the model's: values, rule and way out, for whoever names the operation."""

    def __init__(self, values: str, rule: str, way_out: str) -> None:
        super().__init__(f"{values}; {rule}; {way_out}")
        self.parts = values, rule, way_out

    def said_by(self, operation: str) -> str:
        """As one line of four parts."""
        return four_parts(operation, *self.parts)


class Wanted:
    """The tensors that a checkpoint of theirs has of a model.

    `model` is what was not cut, `shapes` are those of its parameters and persistent buffers by their first names, and
    `first_name` says of every name which one is the first: what is tied has several.
    """

    def __init__(self, model: nn.Module, shapes: Mapping[str, Sequence[int]], first_name: Mapping[str, str]) -> None:
        self.links = links_of(model, list(shapes))
        self.shapes = {link.theirs: link.shape_of_theirs(tuple(shapes[link.ours[0]])) for link in self.links}
        self.ties = ties_of(model, first_name)  # the other name of theirs -> the first

    @classmethod
    def of(cls, model: nn.Module) -> Wanted:
        """Of a model that is whole, be it on meta."""
        first = first_names(model)
        state = {name: x for name, x in model.state_dict().items() if first.get(name, name) == name}
        return cls(model, {name: x.shape for name, x in state.items()}, first)


def check_weights(folder: Path, model: nn.Module) -> None:
    """Refuse a folder whose weights `load_safetensors` could not give to `model`, which may be on meta.

    Raises: ValueError naming what is missing, too many, of another shape or kind, or cannot be opened.
    """
    try:
        with Weights(folder) as weights:
            weights.check(Wanted.of(model))
    except FolderProblem as problem:
        raise ValueError(problem.said_by("model")) from None


class Weights:
    """The tensors of a folder; its files are opened when something of them is asked for.

    Raises: FolderProblem, here and in its methods, for what is not there or cannot be opened.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self._open, self._files = folder, ExitStack(), dict[str, Any]()
        self.file_of = dict[str, str]()  # by tensor
        self._find()

    def __enter__(self) -> Weights:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def slice_of(self, name: str) -> Any:
        """A tensor of theirs, of which what is indexed is read."""
        from safetensors import SafetensorError

        file = self.file_of[name]
        try:
            return self._file(file).get_slice(name)
        except SafetensorError:
            rule, way_out = f"{INDEX} says that it has: the index is of other files", f"copy the index anew, or {_ANEW}"
            raise FolderProblem(f"{self.folder / file} has no {name}", rule, way_out) from None

    def check(self, wanted: Wanted) -> None:
        """Refuse what is not just these tensors."""
        missing = [name for name in wanted.shapes if name not in self.file_of]
        extra = [
            name
            for name in self.file_of
            if name not in wanted.shapes and name not in wanted.ties and not name.endswith(_COMPUTED)
        ]
        if missing and extra:
            self._check_prefix(missing, extra, wanted)
        self._check_quantised(extra)
        for what, names in (("misses", missing), ("also has", extra)):
            if names:
                raise FolderProblem(f"{self.folder} {what} {listing(names)}", *self._other_model(names, wanted))
        for name in self.file_of:
            self.slice_of(name)
        for link in wanted.links:
            self._check_tensor(link, wanted.shapes[link.theirs])
        for name, first in wanted.ties.items():
            if name in self.file_of:
                self._check_tie(name, first)

    def _find(self) -> None:
        """Where each tensor is said to be."""
        if not (index := self.folder / INDEX).exists():
            self.file_of = dict.fromkeys(self._file(FILE).keys(), FILE)
            return
        try:
            self.file_of = dict(json.loads(index.read_text(encoding="utf-8"))["weight_map"])
            sound = all(isinstance(name, str) and Path(name).name == name for name in self.file_of.values())
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            sound = False
        if not sound or not self.file_of:
            rule = "an index has a table weight_map, by tensor the name of its file"
            raise FolderProblem(f"{index} is no index", rule, f"copy it anew, or {_ANEW}")
        if (self.folder / FILE).exists() and FILE not in self.file_of.values():
            rule = f"`from_pretrained` reads {FILE}, and {INDEX} names others: which of them is meant, nobody can say"
            raise FolderProblem(f"{self.folder} has its weights twice", rule, "move one of the two away")

    def _file(self, name: str) -> Any:
        from safetensors import SafetensorError, safe_open

        if name not in self._files:
            path = self.folder / name
            if not path.is_file():
                raise FolderProblem(f"no {path}", *self._no_file(name))
            try:
                self._files[name] = self._open.enter_context(safe_open(path, "pt"))
            except (SafetensorError, OSError) as error:
                said = " ".join(str(error).split())
                rule, way_out = "a file has all the bytes that its table tells of", "copy it once more"
                raise FolderProblem(f"{path} is truncated or altered ({said})", rule, way_out) from None
        return self._files[name]

    def _no_file(self, name: str) -> tuple[str, str]:
        """Why there should be one, and what to do."""
        here = sorted(path.name for path in self.folder.glob("*.safetensors"))
        unnamed = [file for file in here if file not in self.file_of.values()]
        if name != FILE or self.file_of:
            if not unnamed:
                return "the index names it", "copy the file too"
            rule = f"the index names it, and not {listing(unnamed)}, which lie here: it is of other files"
            return rule, f"copy the index anew, or {_ANEW}"
        rule = f"weights lie in {FILE}, or where {INDEX} says" + (f"; here lie {listing(here)}" if here else "")
        if any(file.startswith("adapter") for file in here):
            return rule, f"let the adapter's library merge it into its base (`merge_and_unload`), then {_ANEW}"
        return rule, f"rename {here[0]}, if it has all of them" if len(here) == 1 else _ANEW

    def _check_tensor(self, link: Link | Piece, wanted: tuple[int, ...]) -> None:
        stored = self.slice_of(link.theirs)
        if (found := tuple(stored.get_shape())) != wanted:
            rule = "a checkpoint has just the model's tensors"
            way_out = "give config.json these sizes, or the folder the weights of its config"
            raise FolderProblem(
                f"{self.folder} has {link.theirs} of shape {found}, the model of {wanted}", rule, way_out
            )
        if (kind := stored.get_dtype()) not in _FLOATS:
            rule = f"trained are numbers in {', '.join(_FLOATS)}; others are quantised"
            raise FolderProblem(f"{self.folder} has {link.theirs} in {kind}", rule, "save it dequantised")

    def _check_quantised(self, extra: Sequence[str]) -> None:
        """Scales and packed numbers beside the weights say that these are quantised."""
        scales = [name for name in extra if name.endswith(("scale", "scale_inv", "scales", "qweight", "qzeros"))]
        if scales:
            rule = "it is quantised, and trained are floating numbers"
            raise FolderProblem(f"{self.folder} has {listing(scales)}", rule, "save it dequantised")

    def _check_prefix(self, missing: Sequence[str], extra: Sequence[str], wanted: Wanted) -> None:
        """Refuse names that all begin, or should all begin, with the same words."""
        rename = 'names anew: {name.removeprefix("%s"): x for name, x in tensors.items()}'
        for prefix in _prefixes(extra, missing):
            if all(name.startswith(prefix) for name in self.file_of):
                origin = _ADDED_BY.get(prefix.split(".")[0])
                who = f", which {origin} put there" if origin else ""
                rule = f"its names begin with {prefix!r}{who}, and the model's do not"
                way_out = f"save the model inside by `save_pretrained`, or give the {rename % prefix}"
                raise FolderProblem(f"{self.folder} has {listing(extra)}", rule, way_out)
        for prefix in _prefixes(missing, extra):
            inside = [name for name in wanted.shapes if name.startswith(prefix)]
            if all(name.removeprefix(prefix) in self.file_of for name in inside):
                rest = [name for name in missing if not name.startswith(prefix)]
                lack = f", and {listing(rest)} is not there at all: it is a base model without a head" if rest else ""
                rule = f"the model's names begin with {prefix!r}, and these do not{lack}"
                way_out = f"load it by AutoModelForCausalLM, which knows both, and {_ANEW}"
                raise FolderProblem(f"{self.folder} has {listing(extra)}", rule, way_out)

    def _other_model(self, names: Sequence[str], wanted: Wanted) -> tuple[str, str]:
        rule = "a checkpoint has just the model's tensors"
        if names == ["lm_head.weight"] and "lm_head.weight" in wanted.shapes:
            way_out = "give config.json tie_word_embeddings=true if the head is the embedding, else the folder a head"
            return rule, way_out
        return rule, "give the folder of a model with this very config"

    def _check_tie(self, name: str, first: str) -> None:
        """Refuse two tables where the model has one, unless they are equal."""
        one, other = self.slice_of(first), self.slice_of(name)
        if one.get_shape() == other.get_shape() and _equal(one, other):
            return
        rule = f"config.json ties {name} to {first}, and the files have two different tables"
        way_out = f"give config.json tie_word_embeddings=false to train both, or leave {name} out of the files"
        raise FolderProblem(f"{self.folder} has {name}", rule, way_out)


def _prefixes(longer: Sequence[str], shorter: Sequence[str]) -> Iterator[str]:
    """What stands before some of the shorter names in the longer ones, the longest that a whole name follows first."""
    known = {*shorter}
    found = dict[str, None]()
    for name in longer:
        words = name.split(".")
        found |= {f"{'.'.join(words[:n])}.": None for n in range(1, len(words)) if ".".join(words[n:]) in known}
    return iter(found)


def _equal(one: Any, other: Any) -> bool:
    """Whether two stored tables have the same numbers; read up to the first rows that differ."""
    rows, *rest = one.get_shape()
    step = max(1, _COMPARED // max(1, prod(rest)))
    return all(_same(one[start : start + step], other[start : start + step]) for start in range(0, rows, step))


def _same(one: Tensor, other: Tensor) -> bool:
    return torch.equal(one.to(other.dtype), other)
