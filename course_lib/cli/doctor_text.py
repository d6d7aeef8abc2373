"""What `doctor` looks at of a run's text, in seconds: whether it can be read, has the words, and is long enough."""

from __future__ import annotations

from contextlib import redirect_stdout

from course_lib.cli import train_run
from course_lib.cli.train_config import TrainRun
from course_lib.training.pretrained import Pretrained
from course_lib.training.tokenizer import BYTES, check_vocabulary

_READ_BYTES = 2**20  # so much of it is cut into tokens


def look_at_text(run: TrainRun) -> str:
    """What was not looked at, if anything.

    Raises: ValueError for what `train` would refuse.
    """
    with redirect_stdout(None):  # which text it is, `train` says
        text = train_run.text_of(run)
    beginning = text[:_READ_BYTES]
    tokens = None if run.folder is None else Pretrained(run.folder).tokens_of(beginning.decode("utf-8", "ignore"))
    if tokens is None and run.model.vocab_size != BYTES:
        check_vocabulary(run.model.vocab_size)
        return "the words that train would learn from the text"
    if tokens is None or len(text) <= _READ_BYTES:
        train_run.batches_of(run, text if tokens is None else tokens)
        return ""
    return f"the text beyond its first {_READ_BYTES:,} bytes"
