"""The table of a checkpoint in pieces, `.metadata`, read without running anything that it asks for.

PyTorch's reader unpickles this file, and a pickle may call any function: whoever can write the file could run code on
all ranks, checksums or not, for those can be computed anew. Here a pickle gets the classes that such a table is made
of, and nothing else. Objects among the pieces are read by `torch.load` with `weights_only`, for the same reason.
"""

from __future__ import annotations

import io
import pickle
from pathlib import Path, PosixPath, PurePosixPath, PureWindowsPath, WindowsPath
from typing import Any

import torch
from torch.distributed.checkpoint import filesystem, metadata
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.serialization import _get_layout

FILE = ".metadata"
_CLASSES = {
    metadata: (
        "BytesStorageMetadata",
        "ChunkStorageMetadata",
        "Metadata",
        "MetadataIndex",
        "StorageMeta",
        "TensorProperties",
        "TensorStorageMetadata",
        "_MEM_FORMAT_ENCODING",
    ),
    filesystem: ("_StorageInfo",),
}
_ALLOWED: dict[tuple[str, str], Any] = {
    **{(module.__name__, name): getattr(module, name) for module, names in _CLASSES.items() for name in names},
    **{("torch", name): found for name, found in vars(torch).items() if isinstance(found, torch.dtype)},
    **{("pathlib", kind.__name__): kind for kind in (PosixPath, PurePosixPath, PureWindowsPath, WindowsPath)},
    ("torch", "Size"): torch.Size,
    ("torch.serialization", "_get_layout"): _get_layout,  # looks a layout's name up
    ("collections", "OrderedDict"): dict,
}


class Reader(FileSystemReader):
    """PyTorch's reader of files, but for the table."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """The table of the folder.

        Raises: pickle.UnpicklingError if it asks for something that no table needs.
        """
        with open(Path(self.path) / FILE, "rb") as file:
            table: Metadata = _Table(file).load()
        if table.storage_meta is None:
            table.storage_meta = StorageMeta()
        table.storage_meta.load_id = self.load_id
        return table


class _Table(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """What the pickle may have; a name with dots would lead on into what it may not."""
        found = _ALLOWED.get((module, name))
        if found is None:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no table of a checkpoint needs")
        return found


def read_object(value: io.BytesIO) -> Any:
    """An object among the pieces: numbers, texts, tensors, and lists and dicts of them.

    Raises: pickle.UnpicklingError for anything else.
    """
    return torch.load(value, weights_only=True)
