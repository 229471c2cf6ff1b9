"""Descriptions of sites that several tests use."""

from __future__ import annotations

from typing import Final

#: One node behind a port of the loopback that refuses; no switches, no cluster, no Slurm.
SMALL: Final = """\
all:
  vars:
    railweld_site: small
    railweld_version_set: current
    railweld_transport: infiniband
    railweld_time_sources: [192.0.2.123]
    railweld_vendor_repository: ubuntu2404
  children:
    gpu_nodes:
      hosts:
        gpu1: {ansible_host: 127.0.0.1, ansible_port: 1}
      vars: {railweld_gpu_count: 8, railweld_gpu_model: H200-SXM-141GB}
"""
