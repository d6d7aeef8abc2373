"""Ranks on machines with and without GPUs: the choice is real, only the GPUs are not (`tools.pretended`)."""

from __future__ import annotations

import os

import pytest
import torch
import torch.distributed as dist
from torch import nn

from course_lib import comm
from course_lib.comm.call import backend_for
from course_lib.less import top_k
from course_lib.parallel.table.mesh import make_mesh
from course_lib.ranks import RankError, devices, run_ranks, shutdown
from course_lib.training import error_feedback, replicate
from course_lib.verify.identities.trained import goes_on
from tools.pretended import cuda

GPUS = [0, 1, 2, 4, 8]
RANKS = [1, 2, 4]
SHARED = "rank r computes on GPU r modulo their number, and messages go through main memory (gloo)"


@pytest.fixture
def machine(monkeypatch):
    """Ranks that are started from now on see so many GPUs."""

    def with_gpus(count):
        shutdown()
        monkeypatch.setenv(cuda.GPUS, str(count))

    yield with_gpus
    shutdown()  # the next test's ranks see what there is


def the_lessons_cells(sent):
    """One cell of each kind that the lessons have, as a learner writes them: without a word about devices."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    numbers = torch.tensor([rank + 1.0])
    dist.all_reduce(numbers)
    gathered = [torch.empty(1) for _ in range(world_size)]
    dist.all_gather(gathered, torch.ones(1) * rank)
    sums = [comm.all_reduce(torch.arange(8.0), algorithm=name).tolist() for name in ("ring", "tree", "native")]
    if world_size > 1:
        (comm.isend(numbers, rank - 1) if rank % 2 else comm.irecv(numbers, rank + 1)).wait()
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(nn.Linear(8, 2))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
    comm.all_reduce(torch.ones(3), group=make_mesh(dp=world_size).get_group("dp"))
    wrong = [x for x in (sent, numbers, model.module.weight.grad) if x.device != torch.get_default_device()]
    return [float(numbers), [x.item() for x in gathered], sums, wrong]


def where_i_am():
    """What a rank has chosen, and by which back end each kind of tensor goes."""
    group, here = dist.group.WORLD, torch.get_default_device()
    ways = {kind.type: backend_for(group, torch.empty(1, device=kind)) for kind in {torch.device("cpu"), here}}
    return {"device": str(here), "place": os.environ["LOCAL_RANK"], "asked": cuda.ASKED, "ways": ways}


def check_cells(ranks, device):
    for numbers, gathered, sums, wrong in run_ranks(the_lessons_cells, ranks, torch.ones(2), device=device):
        assert numbers == ranks * (ranks + 1) / 2
        assert gathered == [float(rank) for rank in range(ranks)]
        assert sums == [[ranks * float(i) for i in range(8)]] * 3
        assert not wrong


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("gpus", GPUS)
def test_whatever_the_machine_has_cells_run_on_the_cpu(machine, capsys, gpus, ranks):
    machine(gpus)
    check_cells(ranks, device=None)
    assert capsys.readouterr().out == ""
    for rank, found in enumerate(run_ranks(where_i_am, ranks)):
        assert (found["device"], found["place"], found["ways"]) == ("cpu", str(rank), {"cpu": "gloo"})


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("gpus", GPUS[1:])
def test_asked_for_gpus_each_rank_has_one_or_shares_one(machine, monkeypatch, capsys, gpus, ranks):
    machine(gpus)
    monkeypatch.setenv("COURSE_LIB_DEVICE", "cuda")
    check_cells(ranks, device=None)
    plural = "s" if gpus > 1 else ""
    assert capsys.readouterr().out == ("" if gpus >= ranks else f"{ranks} ranks on {gpus} GPU{plural}: {SHARED}\n")
    own = "nccl" if gpus >= ranks else "gloo"
    for rank, found in enumerate(run_ranks(where_i_am, ranks)):
        assert (found["device"], found["place"]) == (f"cuda:{rank % gpus}", str(rank))
        assert found["asked"] == [f"cpu:gloo,cuda:{own}"]
        assert found["ways"] == {"cpu": "gloo", "cuda": own}


@pytest.mark.parametrize("ranks", RANKS)
def test_without_a_gpu_cuda_is_refused_in_one_line(machine, ranks):
    machine(0)
    with pytest.raises(
        RankError, match="torch sees no GPU; a rank that computes on a GPU needs one; take cpu"
    ) as caught:
        run_ranks(where_i_am, ranks, device="cuda")
    assert "\n" not in str(caught.value)
    check_cells(ranks, device="cpu")


@pytest.mark.parametrize("gpus", GPUS)
@pytest.mark.parametrize("ranks", RANKS)
def test_training_takes_gpus_unasked_where_each_rank_has_one(monkeypatch, gpus, ranks):
    monkeypatch.setattr(devices, "gpus_here", lambda: gpus)
    monkeypatch.delenv("COURSE_LIB_DEVICE", raising=False)
    chosen = [devices.choose_for_training(rank, ranks).device for rank in range(ranks)]
    kind = "cuda" if gpus >= ranks else "cpu"
    assert [device.type for device in chosen] == [kind] * ranks


def test_a_pretended_gpu_is_as_strict_as_a_real_one(machine):
    """What these tests would not see otherwise: both kinds of memory in one operation, and what follows from that."""
    machine(2)
    run_ranks(mistakes_are_refused, 2, device="cuda")


def mistakes_are_refused():
    here, there = torch.ones(3), torch.ones(3, device="cpu")
    for mistake in (lambda: here + there, lambda: torch.stack([here, there]), lambda: there.add_(here)):
        with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
            mistake()
    with pytest.raises(TypeError, match="can't convert .* device type tensor to numpy"):
        here.numpy()
    with pytest.raises(RuntimeError, match="Expected a 'cuda' device type for generator but found 'cpu'"):
        torch.randn(3, generator=torch.Generator(), device="cuda")
    assert (here * torch.tensor(2.0, device="cpu")).device.type == "cuda"  # a single number may come from the CPU
    assert here[torch.tensor([0], device="cpu")].device.type == "cuda"  # and so may places
    assert here.cpu().device == torch.device("cpu") and here.to("cuda") is here


def weights_of_a_llama(folder):
    """Of one that is drawn here, and of one that is read."""
    import transformers

    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 1, "num_attention_heads": 2}
    drawn = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, vocab_size=16, pad_token_id=None))
    if not os.path.isdir(folder):
        drawn.save_pretrained(folder)
    read = transformers.LlamaForCausalLM.from_pretrained(folder)
    return [x.detach().cpu() for model in (drawn, read) for x in model.parameters()]


def test_a_model_of_transformers_is_the_same_on_a_gpu(machine, tmp_path):
    """transformers puts functions of its own in the place of `torch.nn.init`'s while it makes a model."""
    here = weights_of_a_llama(tmp_path / "llama")
    machine(2)
    for there in run_ranks(weights_of_a_llama, 2, tmp_path / "llama", device="cuda"):
        assert len(there) == len(here) and all(map(torch.equal, here, there))


def test_what_a_lossy_average_keeps_lies_beside_its_weight_after_a_checkpoint(machine, monkeypatch):
    machine(4)
    monkeypatch.setenv("COURSE_LIB_DEVICE", "cuda")
    assert goes_on((replicate(lossy=error_feedback(top_k(0.2))),)) == 0.0
