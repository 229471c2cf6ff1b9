"""Run every measurement and print the tables of docs/benchmarks.md.

Usage: python -m tests.bench [NAME ...]; python -m tests.bench.NAME [SIZE ...] for other sizes.
"""

from __future__ import annotations

import subprocess
import sys

BENCHES = ("check_scale", "base_runs", "fabric", "stack", "bridge", "verify", "doctor")

if __name__ == "__main__":
    # A process each: what one leaves in memory must not be measured in the next.
    results = [
        subprocess.run([sys.executable, "-m", f"tests.bench.{name}"], check=False).returncode
        for name in sys.argv[1:] or BENCHES
    ]
    sys.exit(max(results))
