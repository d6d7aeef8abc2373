"""The hardware that the course computes with: links, devices and clusters, every constant with source and date."""

from __future__ import annotations

from course_lib.hardware.clusters import ClusterSpec, cluster_names, load_cluster, parse_cluster
from course_lib.hardware.devices import Device, device_called, device_names, load_device
from course_lib.hardware.links import BETWEEN_CITIES, ETHERNET, INFINIBAND, LINKS, NVLINK, TEN_GIGABIT, Link
from course_lib.hardware.wires import NVLINK_REACHED, Wires, leaving_of_rings, seconds_per_byte, wires
