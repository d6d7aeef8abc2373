"""A wrong interface, for real: two hosts with two networks between them, one for data and a slow one for logins.

The hosts are network namespaces of this machine, each with a name of its own; no Slurm is needed, but root is. What a
wire can carry the kernel decides (`tc`), so `busbw` can be held against it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys

import pytest

from tests.slurm.cluster import missing
from tools.paths import ROOT

HOSTS = ("hosta", "hostb")
NETWORKS = {"data0": "10.77.1", "login0": "10.77.2"}
LOGIN_BITS = 200e6
PORT = 29671


def ip(*words):
    subprocess.run(["ip", *words], check=True)


@pytest.fixture(scope="module")
def hosts():
    if why := missing():  # as a whole cluster is left out, which `make test-slurm` says aloud
        pytest.skip(f"left out: {why}")
    folders = [f"/etc/netns/{host}" for host in HOSTS]
    try:
        for number, host in enumerate(HOSTS, 1):
            ip("netns", "add", host)
            ip("-n", host, "link", "set", "lo", "up")
            os.makedirs(folders[number - 1])
            with open(f"{folders[number - 1]}/hosts", "w") as names:  # what each of them finds in /etc/hosts
                names.write("127.0.0.1 localhost\n")
                names.writelines(f"{NETWORKS['data0']}.{other} {name}\n" for other, name in enumerate(HOSTS, 1))
        for card, network in NETWORKS.items():
            first, second = HOSTS
            ip("link", "add", card, "netns", first, "type", "veth", "peer", "name", card, "netns", second)
            for number, host in enumerate(HOSTS, 1):
                ip("-n", host, "address", "add", f"{network}.{number}/24", "dev", card)
                ip("-n", host, "link", "set", card, "up")
        for host in HOSTS:
            shaped = ["qdisc", "add", "dev", "login0", "root", "tbf", "rate", f"{LOGIN_BITS:.0f}bit"]
            subprocess.run(["tc", "-n", host, *shaped, "burst", "256kb", "limit", "20mb"], check=True)
        yield HOSTS
    finally:
        for host, folder in zip(HOSTS, folders, strict=True):
            subprocess.run(["ip", "netns", "del", host], check=False)
            shutil.rmtree(folder, ignore_errors=True)


def preflight(hosts, interface):
    """What it says on one rank of each host, with this interface for gloo; and its exit status."""
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": interface, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    named = 'hostname "$1"; shift; exec "$@"'
    runs = []
    for number, host in enumerate(hosts):
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", f"--node-rank={number}"]
        torchrun += [f"--master-addr={hosts[0]}", f"--master-port={PORT}", "--nproc-per-node=1"]
        words = ["ip", "netns", "exec", host, "unshare", "--uts", "sh", "-c", named, "sh", host, *torchrun]
        words += ["-m", "course_lib", "preflight"]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        runs.append(subprocess.Popen(words, env=environment, cwd=ROOT, **pipes))
    said = [run.communicate(timeout=240)[0] for run in runs]
    return said[0], runs[0].returncode


def busbw(said):
    """GB/s of the longest message."""
    lines = re.findall(r"^ +\d+ +\d+ +float +sum +[\d.]+ +[\d.]+ +([\d.]+) +0$", said, re.MULTILINE)
    return float(lines[-1])


def test_the_network_for_logins_carries_what_it_can_and_no_more(hosts):
    said = {interface: preflight(hosts, interface)[0] for interface in NETWORKS}
    assert all("ok     hosts       hosta (rank 0), hostb (rank 1)" in one for one in said.values()), said
    wire = LOGIN_BITS / 8 / 1e9
    assert 0.85 * wire < busbw(said["login0"]) < 1.05 * wire, said["login0"]
    assert busbw(said["data0"]) > 5 * busbw(said["login0"]), said["data0"]


def test_lo_is_on_both_hosts_and_leads_to_neither(hosts):
    said, status = preflight(hosts, "lo")
    assert status != 0 and "lo leads to no other host" in said, said
