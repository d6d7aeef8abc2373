"""The take-home script of lesson 10: it equals nothing on purpose, unless it is told to lose nothing."""

from __future__ import annotations

import re

import pytest
import test_scripts
from test_scripts import FEW, TWO_CLUSTERS, ran, steps_of

from tools.paths import ROOT

kept, text = test_scripts.kept, test_scripts.text  # fixtures


def test_two_clusters_that_meet_after_each_step_of_sgd_are_data_parallel(kept, text, tmp_path):
    """And by themselves they learn, whatever their size."""
    found = {}
    for name, changes in {
        "03_ddp.py": [],
        "10_two_clusters.py": [("MOMENTUM = 2, 10, 0.7, 0.5", "MOMENTUM = 2, 1, 1.0, 0.0")],
    }.items():
        script = (ROOT / "notebooks/scripts" / name).read_text()
        same = [("torch.optim.AdamW(model.parameters(), lr=RATE)", "torch.optim.SGD(model.parameters(), lr=0.2)")]
        same += [("max_norm=1.0", "max_norm=1e9")]  # a cluster clips by its own norm
        for old, new in [*changes, *same]:
            assert script.count(old) == 1
            script = script.replace(old, new)
        script = re.sub(r"32, (20|40), 3e-3", f"32, {FEW}, 3e-3", script)
        (tmp_path / name).write_text(script)
        found[name] = steps_of(ran(kept(4), tmp_path / name, text, cwd=tmp_path))
    ddp, clusters = found.values()
    assert len(ddp) == FEW and [loss for _, loss, _ in ddp] == [loss for _, loss, _ in clusters]
    whole = [steps_of(ran(kept(ranks), TWO_CLUSTERS, text, cwd=tmp_path)) for ranks in (2, 4)]
    assert [loss for _, loss, _ in whole[0]] == pytest.approx([loss for _, loss, _ in whole[1]], abs=2e-4)
    assert len(whole[0]) == 40 and whole[0][-1][1] < whole[0][0][1] - 2
