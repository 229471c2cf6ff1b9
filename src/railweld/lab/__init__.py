"""The embedded lab: SSH nodes made from an inventory; only missing hardware is stood in for.

    from railweld.lab import Lab

    lab = Lab.from_inventory(["inventories/lab"])
    lab.up()
    lab.node("gpu1").exec(["uname", "-r"])

docs/lab.md says what is real and what stands in.
"""

from railweld.lab.lab import Lab, Node
from railweld.lab.plan import LabPlan, NodePlan, plan_lab

__all__ = ["Lab", "LabPlan", "Node", "NodePlan", "plan_lab"]
