"""The byte-level BPE: any bytes come back, the same tokens every time, shorter text."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from course_lib.training.batches import Batches
from course_lib.training.text import load_text
from course_lib.training.tokenizer import BYTES, load_tokens, train_tokenizer
from tools.paths import ROOT

EVERY_BYTE = bytes(range(256)) + bytes(reversed(range(256)))


@pytest.fixture(scope="module")
def text():
    """Part of the real text; where the archive is missing, of the fallback."""
    return load_text()[:300_000]


@pytest.fixture(scope="module")
def tokenizer(text):
    return train_tokenizer(text, 512)


@pytest.mark.parametrize(
    "strange",
    [
        b"",
        b"\n",
        b" \r\n\r \t\n",
        EVERY_BYTE,
        EVERY_BYTE * 3,
        "Zoë, 汉字, \u2028 🙂".encode(),
        b"\xff\xfe",
        b"a\x85b\x1cc\x0bd",
    ],
)
def test_any_bytes_come_back(tokenizer, strange):
    assert tokenizer.decode(tokenizer.encode(strange)) == strange


def test_the_text_comes_back_in_fewer_tokens(tokenizer, text):
    tokens = tokenizer.encode(text)
    assert tokenizer.decode(tokens) == text
    assert len(tokens) < 0.65 * len(text)
    assert tokens.dtype == np.uint16 and tokens.max() < tokenizer.vocab_size == 512


def test_source_text_works_too(tmp_path, capsys):
    source = load_text(tmp_path / "missing.tar.gz")[:300_000]
    assert "standard library" in capsys.readouterr().out
    tokenizer = train_tokenizer(source, 600)
    assert tokenizer.vocab_size == 600
    assert tokenizer.decode(tokenizer.encode(source)) == source
    assert tokenizer.decode(tokenizer.encode(EVERY_BYTE)) == EVERY_BYTE


def test_the_first_256_tokens_are_the_bytes(tokenizer):
    assert [tokenizer.decode([byte]) for byte in range(BYTES)] == [bytes([byte]) for byte in range(BYTES)]
    assert min(len(tokenizer.decode([token])) for token in range(BYTES, 512)) == 2
    without_pairs = train_tokenizer(b"to be or not to be", BYTES)
    assert bytes(without_pairs.encode(b"to be").tolist()) == b"to be"


def test_the_most_frequent_pair_comes_first():
    tokenizer = train_tokenizer(b"aab aab aab ab", BYTES + 2)
    assert [tokenizer.decode([token]) for token in (BYTES, BYTES + 1)] == [b"ab", b"aab"]
    assert tokenizer.encode(b"aab").tolist() == [BYTES + 1]


def test_no_token_crosses_the_end_of_a_line(tokenizer, text):
    lines = text[:20_000].splitlines(keepends=True)
    apart = np.concatenate([tokenizer.encode(line) for line in lines])
    assert np.array_equal(tokenizer.encode(b"".join(lines)), apart)


def test_another_process_trains_the_same(tmp_path):
    code = (
        "import hashlib; from course_lib.training.text import load_text; "
        "from course_lib.training.tokenizer import train_tokenizer; "
        "print(hashlib.sha256(train_tokenizer(load_text()[:300_000], 512).to_json()).hexdigest())"
    )
    printed = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed, "RAYON_NUM_THREADS": threads},
            capture_output=True,
            text=True,
            check=True,
            cwd=ROOT,
        ).stdout.split()[-1]
        for seed, threads in (("1", "1"), ("2", "2"))
    }
    assert len(printed) == 1 and len(printed.pop()) == 64


def test_the_second_time_it_is_read_from_the_cache(text, tmp_path, monkeypatch):
    first, tokens = load_tokens(text, 300, tmp_path / "corpus")
    monkeypatch.setattr("course_lib.training.tokenizer.train_tokenizer", None)
    again, same = load_tokens(text, 300, tmp_path / "corpus")
    assert again.to_json() == first.to_json()
    assert np.array_equal(tokens, same) and np.array_equal(tokens, first.encode(text))
    assert sorted(path.suffix for path in (tmp_path / "corpus").iterdir()) == [".json", ".uint16"]
    with pytest.raises(TypeError):  # another text or size is another tokenizer
        load_tokens(text[1:], 300, tmp_path / "corpus")
    with pytest.raises(TypeError):
        load_tokens(text, 301, tmp_path / "corpus")


@pytest.mark.parametrize("lost", [".json", ".uint16"])
def test_half_a_cache_is_made_again(text, tmp_path, lost):
    first, tokens = load_tokens(text, 300, tmp_path)
    next(tmp_path.glob(f"*{lost}")).unlink()
    again, same = load_tokens(text, 300, tmp_path)
    assert again.to_json() == first.to_json() and np.array_equal(tokens, same)


def test_its_tokens_make_batches(text, tokenizer):
    batches = Batches(text=tokenizer.encode(text), batch_size=3, sequence=16)
    inputs, targets = batches.batch(0)
    assert inputs.max() < tokenizer.vocab_size
    for row, target in zip(inputs, targets, strict=True):
        assert tokenizer.decode(row) + tokenizer.decode(target[-1:]) in text


@pytest.mark.parametrize("vocab_size", [255, 65_537])
def test_a_vocabulary_that_cannot_be_is_refused(vocab_size):
    message = rf"^train_tokenizer: vocab_size={vocab_size}; it holds the 256 bytes, .*; choose 256 to 65536$"
    with pytest.raises(ValueError, match=message):
        train_tokenizer(b"text", vocab_size)


def test_a_text_with_too_few_words_is_refused():
    message = r"^train_tokenizer: vocab_size=512, a text of 4 bytes; .* too few .*; give .* or vocab_size <= 259$"
    with pytest.raises(ValueError, match=message):
        train_tokenizer(b"text", 512)
