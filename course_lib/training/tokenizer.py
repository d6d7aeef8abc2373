"""A byte-level BPE, trained on the very text that it cuts into tokens.

The first 256 tokens are the bytes, so any bytes come back as they were; the others are pairs of tokens that were
frequent in the training text. The library sees each byte as the one character of its number (Latin-1), and the text
line by line, so that no token crosses the end of a line.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from course_lib.errors import four_parts
from course_lib.training.text import ARCHIVE

CACHE = ARCHIVE.parent
BYTES = 256
_WORDS = Regex(r" ?\w+| ?[^\w\s]+|\s+")  # a token lies within a word with the space before it, a sign, or spaces


class BytePairTokenizer:
    """Bytes to the numbers of tokens and back."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    @property
    def vocab_size(self) -> int:
        """Number of tokens, V of the model."""
        return self._tokenizer.get_vocab_size()

    def encode(self, text: bytes) -> NDArray[np.uint16]:
        """The tokens of a text.

        Shapes: -> (tokens,).
        """
        encoded = self._tokenizer.encode_batch_fast(list(_lines(text)))
        return np.array([number for line in encoded for number in line.ids], dtype=np.uint16)

    def decode(self, tokens: Sequence[int] | NDArray[np.integer]) -> bytes:
        """The bytes that these tokens stand for."""
        return self._tokenizer.decode(np.asarray(tokens).tolist()).encode("latin-1")

    def to_json(self) -> bytes:
        """The whole tokenizer in the format of the `tokenizers` library."""
        return self._tokenizer.to_str().encode()


def train_tokenizer(text: bytes, vocab_size: int) -> BytePairTokenizer:
    """Join the most frequent pair of tokens again and again, until there are `vocab_size` tokens.

    Raises: ValueError for a vocabulary without room for the bytes or beyond 16 bits, or a text with too few pairs.
    Source: Sennrich et al. 2016; Radford et al. 2019 (bytes).
    """
    check_vocabulary(vocab_size)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Split(_WORDS, "isolated")
    tokenizer.decoder = decoders.Fuse()
    alphabet = [chr(byte) for byte in range(BYTES)]
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(_lines(text), trainer)
    if tokenizer.get_vocab_size() < vocab_size:
        values = f"vocab_size={vocab_size}, a text of {len(text)} bytes"
        way_out = f"give a longer text or vocab_size <= {tokenizer.get_vocab_size()}"
        raise ValueError(four_parts("train_tokenizer", values, "the text has too few different words", way_out))
    return BytePairTokenizer(tokenizer)


def check_vocabulary(vocab_size: int) -> None:
    """Refuse what no text can give.

    Raises: ValueError for a vocabulary without room for the bytes or beyond 16 bits.
    """
    if not BYTES <= vocab_size <= 2**16:
        rule, way_out = "it holds the 256 bytes, and 16 bits hold its numbers", f"choose {BYTES} to {2**16}"
        raise ValueError(four_parts("train_tokenizer", f"vocab_size={vocab_size}", rule, way_out))


def load_tokens(text: bytes, vocab_size: int, cache: Path = CACHE) -> tuple[BytePairTokenizer, NDArray[np.uint16]]:
    """The tokenizer trained on this text, and the text in its tokens; both are kept beside the corpus.

    Raises: ValueError as `train_tokenizer` does.
    """
    stem = cache / f"bpe-{vocab_size}-{hashlib.sha256(text).hexdigest()[:12]}"
    trained, tokens = stem.with_suffix(".json"), stem.with_suffix(".uint16")
    if not (trained.exists() and tokens.exists()):
        tokenizer = train_tokenizer(text, vocab_size)
        _write(trained, tokenizer.to_json())
        _write(tokens, tokenizer.encode(text).tobytes())
    return BytePairTokenizer(Tokenizer.from_file(str(trained))), np.fromfile(tokens, dtype=np.uint16)


def _lines(text: bytes) -> Iterator[str]:
    return (line.decode("latin-1") for line in text.splitlines(keepends=True))


def _write(path: Path, content: bytes) -> None:
    """Several ranks may do so at once, and none may see half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f"{path.name}.{os.getpid()}")
    unfinished.write_bytes(content)
    unfinished.replace(path)
