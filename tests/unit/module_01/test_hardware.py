"""Links, devices and clusters are sourced; a message takes alpha + beta n; dense and sparse peaks stay apart."""

from __future__ import annotations

from dataclasses import replace
from math import inf, nan

import pytest

from course_lib.hardware import (
    ETHERNET,
    INFINIBAND,
    LINKS,
    NVLINK,
    Link,
    cluster_names,
    device_names,
    load_cluster,
    load_device,
    wires,
)


def test_a_message_takes_alpha_and_its_bytes():
    link = Link(name="test", alpha_s=2.0, bandwidth_bytes_per_s=4.0, source="made up", date="2026-11")
    assert link.beta_s_per_byte == 0.25
    assert link.time_s(0) == 2.0
    assert link.time_s(12) == 5.0


def test_bandwidths_are_one_way():
    assert NVLINK.bandwidth_bytes_per_s == 150e9  # 900 GB/s is all 18 links, both ways
    assert INFINIBAND.bandwidth_bytes_per_s == 400e9 / 8
    assert ETHERNET.bandwidth_bytes_per_s == 25e9 / 8


def test_every_link_is_found_by_name_and_has_a_source_and_a_date():
    assert list(LINKS) == ["nvlink", "infiniband", "ethernet"]
    for link in LINKS.values():
        assert "bandwidth" in link.source and "alpha" in link.source and "20" in link.date


def test_inside_a_node_is_faster_at_every_size():
    for nbytes in (0, 10**3, 10**9):
        assert NVLINK.time_s(nbytes) < INFINIBAND.time_s(nbytes) < ETHERNET.time_s(nbytes)


@pytest.mark.parametrize(
    ("alpha_s", "bandwidth"),
    [(-1e-6, 1e9), (1e-6, 0), (nan, 1e9), (1e-6, nan), (inf, 1e9), (3e302, 1e9), (1e-6, 1e-300)],
)
def test_impossible_links_are_refused(alpha_s, bandwidth):
    with pytest.raises(ValueError, match=r"^Link: alpha_s=.*; a latency is 0 or more .*; give seconds and bytes"):
        Link(name="bad", alpha_s=alpha_s, bandwidth_bytes_per_s=bandwidth, source="-", date="-")


@pytest.mark.parametrize("name", device_names())
def test_every_device_has_a_source_and_a_date(name):
    device = load_device(name)
    assert any(maker in device.source for maker in ("NVIDIA", "AMD")) and device.date.startswith("20")
    assert device.memory_bytes() == device.memory_gb * 10**9
    assert device.memory_bytes() < device.memory_bytes(binary=True) < 1.08 * device.memory_bytes()


@pytest.mark.parametrize("name", device_names())
def test_dense_and_sparse_peaks_are_apart(name):
    device = load_device(name)
    for dtype in device.sparse_flops_per_s:
        ratio = device.peak_flops_per_s(dtype, sparse=True) / device.peak_flops_per_s(dtype)
        misprint = name == "l40s_48" and dtype in ("bf16", "fp16")  # 362 and 733, where its clock makes 366
        assert ratio == pytest.approx(2, rel=0.013 if misprint else 0.003)
    assert device.peak_flops_per_s("fp32") < device.peak_flops_per_s("fp16")


@pytest.mark.parametrize(
    ("name", "clock_hz", "tensor_cores", "products", "cores", "vector_clock_hz"),
    [
        ("v100_sxm_32", 1.53e9, 640, 64, 5120, 1.53e9),
        ("a100_sxm_40", 1.41e9, 432, 256, 6912, 1.41e9),
        ("a100_sxm_80", 1.41e9, 432, 256, 6912, 1.41e9),
        ("h100_sxm_80", 1.83e9, 528, 512, 16896, 1.98e9),
        ("h200_sxm_141", 1.83e9, 528, 512, 16896, 1.98e9),
        ("h800_sxm_80", 1.83e9, 528, 512, 16896, 1.98e9),
        ("mi300x_192", 2.1e9, 1216, 256, 2 * 19456, 2.1e9),  # each stream processor does two products in a cycle
        ("rtx_3090", 1.695e9, 328, 64, 10496, 1.695e9),
        ("rtx_4090", 2.52e9, 512, 64, 16384, 2.52e9),
        ("rtx_5090", 2.407e9, 680, 64, 21760, 2.407e9),
    ],
)
def test_peaks_follow_from_clocks_and_cores(name, clock_hz, tensor_cores, products, cores, vector_clock_hz):
    # A multiply-add is two operations; `products` are those of one tensor core in one cycle, in 16 bits.
    device = load_device(name)
    assert device.peak_flops_per_s("fp16") == pytest.approx(2 * products * tensor_cores * clock_hz, rel=0.003)
    assert device.peak_flops_per_s("fp32") == pytest.approx(2 * cores * vector_clock_hz, rel=0.003)


def test_what_was_assumed_is_marked():
    marked = {name for name in cluster_names() if "assumed, not verified" in load_cluster(name).card.source}
    assert marked == {"kempner_a100", "box_rtx_3090", "box_rtx_4090", "box_rtx_5090"}
    assert all("assumed" in load_cluster(name).source for name in cluster_names() if name.startswith("box_"))
    assert "alpha: assumed" in ETHERNET.source and "inferred" in load_cluster("puhti_v100").inside.source


def test_the_h100_does_989_dense_and_1979_with_sparsity():
    h100 = load_device("h100_sxm_80")
    assert h100.peak_flops_per_s() == 989e12
    assert h100.peak_flops_per_s(sparse=True) == 1979e12
    assert h100.memory_bytes() == 80e9
    assert load_device("h200_sxm_141").dense_flops_per_s == h100.dense_flops_per_s


def test_the_kempner_cluster_adds_up_with_dense_peaks():
    cluster = load_cluster("kempner_h100")
    assert cluster.n_gpus == 4 * 24 * 4 == 384
    assert round(cluster.peak_flops_per_s() / 1e15, 1) == 379.8
    assert int(cluster.peak_flops_per_s(sparse=True) / 1e15) == 759  # what the workshop prints
    assert int(cluster.peak_flops_per_s("fp32") / 1e15) == 25


def test_nvlink_is_900_gb_per_s_for_one_gpu_both_ways_and_150_for_a_pair_one_way():
    cluster = load_cluster("kempner_h100")
    one_way = cluster.device.nvlinks * cluster.device.nvlink_bytes_per_s
    assert 2 * one_way == 900e9
    assert one_way / (cluster.gpus_per_node - 1) == 150e9 == NVLINK.bandwidth_bytes_per_s
    assert 75e9 * 6 * 2 == 900e9  # the workshop's way to the same number, with a wrong 75 for a pair


@pytest.mark.parametrize("name", cluster_names())
def test_the_links_of_every_cluster_follow_from_its_devices(name):
    cluster = load_cluster(name)
    if "PCIe" in cluster.inside.name:
        transfers_per_s = {"4": 16e9, "5": 32e9}[cluster.inside.name[-1]]
        lane = transfers_per_s / 8 * 128 / 130  # bytes, without the code's two bits
        assert cluster.inside.bandwidth_bytes_per_s == pytest.approx(16 * lane, rel=0.001)
    else:
        one_way = cluster.device.nvlinks * cluster.device.nvlink_bytes_per_s
        ways = cluster.gpus_per_node - 1 if cluster.mesh else 1
        assert cluster.inside.bandwidth_bytes_per_s == one_way / ways
        assert wires(cluster).inside_bytes_per_s == one_way
    assert cluster.between.bandwidth_bytes_per_s < cluster.inside.bandwidth_bytes_per_s
    for part in (cluster, cluster.device, cluster.inside, cluster.card):
        assert part.source and "20" in part.date


def test_clusters_and_devices_there_are():
    assert device_names() == (
        *("a100_sxm_40", "a100_sxm_80", "b200_sxm_180", "gb200_186", "gb300_288", "h100_sxm_80", "h200_sxm_141"),
        *("h800_sxm_80", "l40s_48", "mi300x_192", "rtx_3090", "rtx_4090", "rtx_5090", "v100_sxm_32"),
    )
    assert {name: load_cluster(name).n_gpus for name in cluster_names()} == {
        "aws_l40s": 8,
        "azure_mi300x": 8,
        "box_rtx_3090": 4,
        "box_rtx_4090": 8,
        "box_rtx_5090": 8,
        "deepseek_h800": 2048,
        "dgx_a100": 8,
        "dgx_b200": 8,
        "dgx_h100": 8,
        "dgx_h200": 8,
        "gb200_nvl72": 72,
        "gb300_nvl72": 72,
        "kempner_a100": 144,
        "kempner_h100": 384,
        "puhti_v100": 320,
    }
    assert {load_cluster(name).device.name for name in cluster_names()} == {load_device(n).name for n in device_names()}


def test_an_unknown_preset_lists_the_known_ones():
    with pytest.raises(ValueError, match=r"^load_device: name='b100'; there is no such device; choose one of a100"):
        load_device("b100")
    with pytest.raises(ValueError, match=r"^load_cluster: name='lumi'; there is no such cluster; choose one of aws"):
        load_cluster("lumi")


def test_a_peak_that_no_data_sheet_prints_is_refused():
    v100 = load_device("v100_sxm_32")
    with pytest.raises(ValueError, match=r"^V100 SXM2 32 GB: dtype='bf16'; .* no dense peak for it; choose .* fp16,"):
        v100.peak_flops_per_s("bf16")
    with pytest.raises(ValueError, match=r"dtype='fp16'; .* no sparse peak for it; ask for the dense peak$"):
        v100.peak_flops_per_s("fp16", sparse=True)


@pytest.mark.parametrize("field", ["n_nodes", "gpus_per_node", "nodes_in_domain", "cards"])
def test_a_cluster_has_nodes_and_gpus(field):
    with pytest.raises(ValueError, match=rf"^ClusterSpec 'DGX A100': {field}=0; .*; give {field} >= 1$"):
        replace(load_cluster("dgx_a100"), **{field: 0})
