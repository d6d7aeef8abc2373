"""What setting up brings over the network, in bytes: sizes of the archives for Linux, x86-64, Python 3.11."""

from __future__ import annotations

DATE = "2026-11-21"
TORCH_FOR_CPU = 191_794_682
OTHER_PACKAGES = 164_700_000
CHECKS = 185_000_000  # the second environment, for `make test`
