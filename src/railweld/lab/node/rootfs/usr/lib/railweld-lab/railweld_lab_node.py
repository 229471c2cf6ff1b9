"""The node's state for stand-ins that packages bring: `import railweld_lab_node`."""

import sys

sys.path.insert(0, "/usr/lib/railweld-lab")
from railweld.lab.node.hardware import pci_address
from railweld.lab.node.modules import (
    find as find_module,
)
from railweld.lab.node.modules import (
    load as load_module,
)
from railweld.lab.node.modules import (
    unload as unload_module,
)
from railweld.lab.node.state import (
    enrolled_keys,
    faults,
    gpus,
    hcas,
    install_module,
    installed_modules,
    kernel,
    loaded_modules,
    nvswitches,
    path,
    profile,
    remove_module,
    secure_boot,
)

__all__ = [
    "enrolled_keys",
    "faults",
    "find_module",
    "gpus",
    "hcas",
    "install_module",
    "installed_modules",
    "kernel",
    "load_module",
    "loaded_modules",
    "nvswitches",
    "path",
    "pci_address",
    "profile",
    "remove_module",
    "secure_boot",
    "unload_module",
]
