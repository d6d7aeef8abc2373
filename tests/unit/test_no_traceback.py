"""No input of any command ends in a traceback: settings at their edges, a few of each; `make fuzz` tries more."""

from __future__ import annotations

import json

import pytest
import transformers
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from course_lib.cli.main import main
from tests import fuzz

LLAMA, CLUSTER, TINY = "model=llama3_1_8b", "cluster=dgx_h100", "model=tiny_llama"
HUGE = "99999999999999999999"
SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
FAMILIES = ("llama", "qwen3", "gemma2", "phi3", "mixtral", "deepseek_v2", "gpt2")
JSON_EDGES = (
    None,
    True,
    0,
    -1,
    1,
    3.5,
    float("nan"),
    float("inf"),
    2**31,
    10**20,
    10**400,
    "",
    "x",
    [],
    [1],
    {},
    {"a": 1},
)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """Where a command may write."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs.json").write_text("[]")


@pytest.mark.parametrize("command", fuzz.BASES)
def test_settings_at_their_edges_are_answered_in_a_line(command):
    fuzz.check(command, 12)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["plan", LLAMA, CLUSTER, "+cluster.device.memory_gb=24"],
            "a cluster's device is one of the presets; choose cl",
        ),
        (
            ["plan", LLAMA, CLUSTER, "cluster.device.memory_gb=24"],
            "a cluster's device is one of the presets; choose cl",
        ),
        (
            ["plan", LLAMA, CLUSTER, f"micro_batch={HUGE}"],
            "plan: micro_batch=1099511627776…; nothing here is more than",
        ),
        (["plan", LLAMA, CLUSTER, "cluster.inside.alpha_s=3.1e302"], "Link: alpha_s=3.1e+302, "),
        (["plan", LLAMA, CLUSTER, "+model.made=0"], "key 'made'; not a field of ModelConfig; choose from"),
        (
            ["doctor", TINY, "model.hidden_size=2147483648"],
            "hidden_size of 9 digits or more; no model that can be trai",
        ),
        (["doctor", TINY, "+model.head_dim=268435456"], "head_dim=268435456; no model that can be trained is so wide"),
        (["doctor", TINY, "+model.made=0"], "key 'made'; not a field of ModelConfig; choose from"),
        (["sweep", LLAMA, "device.usable_gib=1e400"], "device.usable_gib=inf; a program can use some of the printed"),
        (["verify", "json:dumps", "json:loads", "batches=\n"], "verify: '\\n'; a function is named by its file"),
        (["plan", LLAMA, CLUSTER, f"batch={HUGE}"], "plan: batch=1099511627776…; nothing here is more than 10995"),
        (["plan", LLAMA, CLUSTER, f"cluster.n_nodes={HUGE}"], "cluster: n_nodes > 1048576; no cluster has so many"),
        (["plan", LLAMA, CLUSTER, f"model.n_layers={HUGE}"], "n_layers of 4 digits or more; no model that can be trai"),
        (["sweep", LLAMA, f"token_imbalance={'9' * 400}"], "token_imbalance is a number; give token_imbalance >= 1"),
        (["sweep", LLAMA, f"out={'x' * 5000}.csv"], "it is no path: File name too long; name another"),
        (["sweep", LLAMA, "out='~nobody-here/x.csv'"], "it is no path: Could not determine home directory"),
        (
            ["train", TINY, "zero_stage=3", "dp=2", "policy=[by_block]"],
            "policy=['by_block']; policy is a word; write one",
        ),
        (["train", TINY, f"lr={'9' * 400}"], "nothing here is more than"),
        (["train", TINY, "pp=2", "microbatches=1000000"], "forwards, and 1048576 can be listed; give fewer of them"),
        (["train", "model=a + ü", "steps=1"], "quotes that the shell leaves"),
        (["doctor", TINY, "dp=1099511627776"], "doctor: 1099511627776 ranks; no cluster has so many; give degrees"),
        (["doctor", TINY, "text=${x}"], "Interpolation key 'x' not found; write name=value"),
        (
            ["slurm", TINY, "gpus_per_node=1099511627776", "tp=3"],
            "a rank has a GPU, and dp x pp x cp x tp is 3; give degrees",
        ),
        (["calibrate", "out='~nobody-here/x'"], "it is no path: Could not determine home directory"),
    ],
)
def test_what_ended_in_a_traceback_is_said_in_a_line(arguments, said, capsys):
    assert main(arguments) == 2
    err = capsys.readouterr().err
    assert said in err and err.count("\n") == 1


@st.composite
def configurations(draw):
    """The config.json of a small model, with one or two of its values at their edges, or gone."""
    family = draw(st.sampled_from(FAMILIES))
    found = transformers.AutoConfig.for_model(family, **({} if family == "gpt2" else SIZES)).to_dict()
    for name in draw(
        st.lists(st.sampled_from(sorted(found.keys() - {"model_type"})), min_size=1, max_size=2, unique=True)
    ):
        if draw(st.booleans()):
            found[name] = draw(st.sampled_from(JSON_EDGES))
        else:
            del found[name]
    return found | {"model_type": family}


@settings(max_examples=40, deadline=None, derandomize=True, database=None, phases=(Phase.generate, Phase.shrink))
@given(config=configurations(), command=st.sampled_from(("doctor", "plan", "sweep")))
def test_values_of_config_json_at_their_edges_are_answered_in_a_line(tmp_path_factory, config, command):
    folder = tmp_path_factory.getbasetemp() / "edges"
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    base = {"plan": [CLUSTER, "retime=0", "pp=1", "cp=1"], "sweep": ["gpus=8", "pp=1", "cp=1"], "doctor": ["tp=2"]}
    problem = fuzz.problem_of([command, f"model={folder}", *base[command]])
    assert not problem, f"{config}\n{problem}"


def test_a_sweep_takes_a_folder_as_plan_and_doctor_do(tmp_path, capsys):
    """Which says its shape, and in the configuration that is kept stands where it is."""
    (tmp_path / "theirs").mkdir()
    transformers.LlamaConfig(**SIZES, vocab_size=256).save_pretrained(tmp_path / "theirs")
    assert main(["sweep", "model=theirs", "gpus=8", "pp=1", "cp=1", "out=rows.csv"]) == 0
    assert capsys.readouterr().out.startswith("theirs: convention megatron, ")
    assert "model: {folder: theirs}" in (tmp_path / "rows.yaml").read_text()
    assert main(["sweep", "model=theirs", "model.n_layers=3"]) == 2
    assert "the folder says its model's shape; leave it out" in capsys.readouterr().err


def test_a_folder_without_a_number_of_experts_of_a_token_is_told_so(tmp_path, capsys):
    transformers.DeepseekV2Config().save_pretrained(tmp_path / "theirs")
    for command in (["doctor"], ["plan", CLUSTER], ["sweep"]):
        assert main([*command, "model=theirs"]) == 2
        assert "num_experts_per_tok=None; num_experts_per_tok is a whole number; give" in capsys.readouterr().err
