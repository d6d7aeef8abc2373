"""A folder of Hugging Face: config.json, and if they are there a tokenizer's files and weights in safetensors.

Nothing is downloaded, and no code of the folder is run. `transformers` is imported where it is used: it takes seconds.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from course_lib.config import ModelConfig
from course_lib.errors import four_parts
from course_lib.models.families import check_family, config_of, is_known
from course_lib.models.logits import Logits
from course_lib.models.made import made_config, missing_sizes
from course_lib.parallel.table.meta import all_on_meta, parameters_on_meta

_CONFIG = "config.json"
_TOKENIZERS = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json")  # any of these will do
_MARKED = 2**20  # bytes of either end of a file
BESIDE = (*_TOKENIZERS, "special_tokens_map.json", "added_tokens.json", "merges.txt", "generation_config.json")


class Pretrained:
    """What such a folder says of its model.

    Raises: ValueError, in one line, for a folder without a config.json that can be read, of a family that is not known
        here, or with weights in other files alone.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._theirs = self._config()
        self.has_weights = any(folder.glob("*.safetensors"))  # else it is only a shape
        if not self.has_weights and any(folder.glob("*.bin")):
            self._refuse("its weights are in .bin alone", "save it once more by `save_pretrained`, as safetensors")

    def shape(self) -> ModelConfig:
        """Its shape, under the folder's name: by formula if its family is known, else from the model made on meta.

        Raises: ValueError as `families.config_of`, or `made.made_config`.
        """
        if not is_known(self._theirs.model_type):
            return made_config(self._theirs, self._on_meta())
        try:
            return config_of(self._theirs)
        except ValueError as error:
            refused = error
        with suppress(ValueError):  # else it is a setting that nobody can count, and not one that our shape cannot say
            return made_config(self._theirs, self._on_meta())
        raise refused

    def _on_meta(self) -> nn.Module:
        """The model in no memory at all, buffers included."""
        import transformers

        try:
            with all_on_meta():
                found: nn.Module = transformers.AutoModelForCausalLM.from_config(self._theirs)
        except Exception as error:  # whatever its code stumbles over in a configuration that it has taken
            unsaid = re.findall(r"no attribute '(\w+)'", str(error))
            open_sizes = ", ".join([*missing_sizes(self._theirs), *unsaid])
            way_out = f"give config.json {open_sizes}" if open_sizes else "mend the value"
            self._refuse(f"transformers builds no model of its {_CONFIG} ({_first_line(error)})", way_out)
        return found

    def model(self, dtype: torch.dtype, device: torch.device) -> Logits:
        """The model of `transformers`, its buffers on `device`, its parameters on meta.

        Memory: one parameter at a time.
        """
        import transformers

        try:
            with device, parameters_on_meta():
                return Logits(transformers.AutoModelForCausalLM.from_config(self._theirs, dtype=dtype))
        except Exception as error:  # whatever its code stumbles over in a configuration that it has taken
            self._refuse(f"transformers builds no model of its {_CONFIG} ({_first_line(error)})", "mend the value")

    def mark(self) -> str:
        """What tells these weights from others in a moment: a sum of their files' sizes, first and last bytes."""
        found = hashlib.sha256()
        for path in sorted(self.folder.glob("*.safetensors")):
            with open(path, "rb") as file:
                found.update(f"{path.name} {path.stat().st_size}".encode() + file.read(_MARKED))
                file.seek(max(0, path.stat().st_size - _MARKED))
                found.update(file.read())
        return found.hexdigest()[:16]

    def rule(self) -> Callable[[str, Tensor], None]:
        """Fills one of the model's weights as theirs begin, by its name: for `initial.drawn`.

        In a model on meta the weight alone has memory when their own function goes through the modules around it, the
        smallest first: a larger one may begin a weight anew, as GPT-2's blocks do.
        """
        model = self.model(torch.float32, torch.device("cpu"))
        theirs: Any = model.model

        def fill(name: str, weight: Tensor) -> None:
            *path, kind = name.split(".")
            owner = model.get_submodule(".".join(path))
            on_meta = owner.get_parameter(kind)
            owner.register_parameter(kind, nn.Parameter(weight, requires_grad=False))
            for depth in range(len(path), 0, -1):
                theirs._init_weights(model.get_submodule(".".join(path[:depth])))
            owner.register_parameter(kind, on_meta)

        return fill

    def tokens_of(self, text: str) -> NDArray[np.int64] | None:
        """The text in the folder's own tokens, with none that begins or ends it; None if it has no tokenizer.

        Raises: ValueError for a tokenizer that cannot be read, or that has tokens which the model has not.
        """
        if not any((self.folder / name).exists() for name in _TOKENIZERS):
            return None
        import transformers

        try:
            tokenizer = transformers.AutoTokenizer.from_pretrained(self.folder, local_files_only=True)
            tokens = np.array(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"], dtype=np.int64)
        except Exception as error:  # each kind of tokenizer has errors of its own
            self._refuse(f"its tokenizer cannot be read ({_first_line(error)})", "mend it, or remove its files")
        if len(tokens) and tokens.max() >= (vocab_size := self.shape().vocab_size):
            rule = f"its tokenizer makes a token {tokens.max()}, the model has {vocab_size}"
            self._refuse(rule, "give the folder the model's own tokenizer")
        return tokens

    def copy_tokenizer(self, folder: Path) -> None:
        """What `transformers` needs beside the weights, so that a trained model can be used by itself."""
        for name in BESIDE:
            if (self.folder / name).exists():
                shutil.copy(self.folder / name, folder / name)

    def _config(self) -> Any:
        path = self.folder / _CONFIG
        if not path.is_file():
            self._refuse(f"it has no {_CONFIG}", "name a folder that `save_pretrained` wrote")
        try:
            family = dict(json.loads(path.read_text(encoding="utf-8"))).get("model_type")
        except (ValueError, TypeError):
            self._refuse(f"its {_CONFIG} is no table of names and values", "copy it once more")
        import transformers
        from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

        if family not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
            check_family(family)
        try:
            theirs = transformers.AutoConfig.from_pretrained(self.folder, local_files_only=True)
        except Exception as error:  # checked field by field, each kind of mistake with an error of its own
            self._refuse(f"transformers refuses its {_CONFIG} ({_first_line(error)})", "mend the value")
        theirs.name_or_path = self.folder.resolve().name
        return theirs

    def _refuse(self, rule: str, way_out: str) -> NoReturn:
        raise ValueError(four_parts("model", f"folder {str(self.folder)!r}", rule, way_out)) from None


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
