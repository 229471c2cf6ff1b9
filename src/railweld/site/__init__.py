"""The site description: read from an Ansible inventory, checked, and turned into one model."""

from railweld.site.build import build_site, load_site
from railweld.site.inventory import (
    RawHost,
    RawInventory,
    ValueProblem,
    inventory_from_task_vars,
    load_inventory,
    parse_extra_vars,
)
from railweld.site.model import Gpu, Hca, Host, Site, Switch, SwitchPort
from railweld.site.problem import Problem, SiteError
from railweld.site.variables import Partition, Rail

__all__ = [
    "Gpu",
    "Hca",
    "Host",
    "Partition",
    "Problem",
    "Rail",
    "RawHost",
    "RawInventory",
    "Site",
    "SiteError",
    "Switch",
    "SwitchPort",
    "ValueProblem",
    "build_site",
    "inventory_from_task_vars",
    "load_inventory",
    "load_site",
    "parse_extra_vars",
]
