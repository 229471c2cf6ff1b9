"""Run every measurement and print the tables of docs/benchmarks.md.

Usage: python -m tests.bench [NAME ...]
"""

from __future__ import annotations

import importlib
import sys

BENCHES = ("check_scale", "base_runs", "fabric", "stack")

if __name__ == "__main__":
    for name in sys.argv[1:] or BENCHES:
        importlib.import_module(f"tests.bench.{name}").main()
