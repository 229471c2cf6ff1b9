#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Installs exact package versions as one transaction on the node, and holds the whole family.

Runs on the node: standard library only, Python 3.8 or newer.
"""

from __future__ import annotations

import fnmatch
import json
import os
import re
import signal
import subprocess
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.railweld_locks import wait_for_locks

DOCUMENTATION = r"""
module: railweld_packages
short_description: Install exactly pinned packages and hold their family
description:
  - One transaction on the node, in one round trip. It waits for the package locks, finishes what an
    interrupted dpkg left, refuses a version that the repositories do not offer, refuses a silent
    downgrade and a transaction that touches kernels or packages outside of the family, installs,
    and puts every installed member of the family on hold, also when the installation fails.
  - The connection may break in the middle, the transaction goes on and ends with the holds set.
    After a power cut the next run finishes it.
  - The apt module cannot do this. It has neither holds nor a look at the transaction before it
    starts, and a play that unholds, installs and holds in three steps leaves the node unheld
    when the connection breaks between them.
options:
  state:
    description:
      - C(present) installs and holds; C(held) repairs an interrupted dpkg and puts installed family
        members back on hold; C(unlocked) only waits for the locks.
    type: str
    choices: [present, held, unlocked]
    default: present
  idle_units:
    description: Units that C(unlocked) also waits for, such as an automatic update under way.
    type: list
    elements: str
    default: []
  component:
    description: Name under which the holds are recorded.
    type: str
    default: base
  packages:
    description: What to install, each with C(name) and C(version).
    type: list
    elements: dict
    default: []
  remove:
    description: Shell patterns of installed packages that make way, such as an older branch.
    type: list
    elements: str
    default: []
  pins:
    description:
      - Versions of all packages that the host shall have, by name. A package that dpkg was
        unpacking when the power went is unpacked again in that version.
    type: dict
    default: {}
  family:
    description: Shell patterns of names that belong together and are held together.
    type: list
    elements: str
    default: []
  not_family:
    description: Shell patterns of names that match the family but belong elsewhere.
    type: list
    elements: str
    default: []
  refuse:
    description: Shell patterns of packages that the transaction must not install.
    type: list
    elements: str
    default: [linux-image-*, linux-generic*]
  allow_downgrade:
    description: Whether an older version than the installed one may be installed.
    type: bool
    default: false
  lock_timeout:
    description: Seconds to wait for the package locks.
    type: int
    default: 600
  update:
    description: Whether to refresh package lists that do not offer the pinned versions.
    type: bool
    default: true
author:
  - railweld contributors
"""

EXAMPLES = r"""
- name: Install and hold the driver
  railweld_packages:
    component: driver
    packages: [{name: nvidia-driver-515, version: 515.86.01-0ubuntu1}]
    family: [nvidia-*, libnvidia-*]
"""

RETURN = r"""
waited_s:
  description: Seconds spent waiting for the package locks.
  type: float
  returned: always
repaired:
  description: Packages that an interrupted dpkg had left and that were configured now.
  type: list
  returned: always
held:
  description: Packages put on hold by this run.
  type: list
  returned: always
"""

HOLDS_FILE = "/var/lib/railweld/holds.json"
ENVIRONMENT = {
    "DEBIAN_FRONTEND": "noninteractive",
    "APT_LISTCHANGES_FRONTEND": "none",
    # needrestart would ask which services to restart.
    "NEEDRESTART_MODE": "l",
    "LC_ALL": "C",
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
}


class RefusedError(Exception):
    """The transaction must not or cannot happen; the text says found, expected and fix."""


class Apt:
    """dpkg and apt of the node. `run` is given by tests."""

    def __init__(self, lock_timeout, run=None):
        self.lock_timeout = lock_timeout
        self.run = run or run_command

    def packages(self):
        """Return every package that dpkg knows: `{name: {version, status, hold}}`."""
        _, out, _ = self.run(
            ["dpkg-query", "--show", "--showformat=${Package}\t${Version}\t${db:Status-Abbrev}\n"]
        )
        return parse_packages(out)

    def audit(self):
        """Return packages that dpkg calls half installed or half configured."""
        _, out, _ = self.run(["dpkg", "--audit"])
        return sorted(set(re.findall(r"^ (\S+)", out, re.MULTILINE)))

    def repair(self, pins):
        """Finish an interrupted dpkg, then let apt complete missing dependencies.

        What was configured half can be configured again. What was unpacked half has to be unpacked
        again, which dpkg cannot and `--fix-broken` does not do: it takes the newest version, or
        finds no archive, or nothing to do.
        """
        code, out, err = self.run(
            ["dpkg", "--configure", "-a", "--force-confdef", "--force-confold"]
        )
        leaving, again = torn(self.packages(), pins)
        if leaving:
            code, out, err = self.run(
                ["dpkg", "--remove", "--force-remove-reinstreq", "--force-depends", *leaving]
            )
        if again:
            code, out, err = self.apt("install", "--reinstall", "--allow-downgrades", *again)
        if code != 0 or self.audit():
            code, out, err = self.apt("install", "--fix-broken")
        if code != 0 or self.audit():
            raise RefusedError(
                f"found dpkg interrupted and no way to finish it: {last_lines(out, err)}. "
                "expected every package configured. "
                "see: dpkg --audit. Fix: solve the named package's error on the node, then run "
                "again"
            )

    def update(self):
        """Refresh the package lists. Returns the error text, empty when all could be read."""
        code, out, err = self.run(["apt-get", "update", "--option", "APT::Update::Error-Mode=any"])
        return "" if code == 0 else last_lines(out, err)

    def policy(self, names):
        """Return the versions that the repositories offer: `{name: [versions]}`."""
        _, out, _ = self.run(["apt-cache", "policy", *names])
        return parse_policy(out)

    def exact_needs(self, pins):
        """Return what pinned packages in turn demand in exactly one version: `{name: version}`.

        apt takes the newest version of a dependency and not the demanded one, so with several
        releases in one repository it cannot solve the transaction by itself.
        """
        needs, ahead = {}, dict(pins)
        while ahead:
            _, out, _ = self.run(["apt-cache", "show", *(f"{n}={ahead[n]}" for n in sorted(ahead))])
            demanded = parse_exact_needs(out)
            new = {name for name in demanded if name not in needs and name not in pins}
            # What is only provided by others has no version of its own.
            offered = self.policy(sorted(new)) if new else {}
            ahead = {
                name: demanded[name] for name in new if demanded[name] in offered.get(name, ())
            }
            needs.update(ahead)
        return needs

    def simulate(self, arguments):
        """Return `{Inst|Remv: [names]}` of a transaction, without doing it."""
        code, out, err = self.apt("install", "--simulate", *arguments)
        if code != 0:
            raise RefusedError(
                "found that apt cannot solve the transaction: {}. expected the pinned versions and "
                "their dependencies in the repositories. see: apt-get -s install {}. Fix: complete "
                "the mirror, or remove the package that conflicts".format(
                    last_lines(out, err), " ".join(arguments)
                )
            )
        found = {"Inst": [], "Remv": []}
        for verb, name in re.findall(r"^(Inst|Remv) (\S+)", out, re.MULTILINE):
            found[verb].append(name)
        return found

    def apt(self, verb, *arguments):
        """Run apt-get without questions; it waits for dpkg's lock by itself."""
        return self.run(
            [
                "apt-get",
                verb,
                "--yes",
                "--no-install-recommends",
                "--allow-change-held-packages",
                "--option",
                f"DPkg::Lock::Timeout={self.lock_timeout}",
                "--option",
                "Dpkg::Options::=--force-confdef",
                "--option",
                "Dpkg::Options::=--force-confold",
                *arguments,
            ]
        )

    def mark_auto(self, names):
        """Mark packages that only others asked for, so that they may go with those."""
        if names:
            self.run(["apt-mark", "auto", *names])

    def hold(self, names):
        """Put installed packages on hold."""
        if not names:
            return
        text = "".join(f"{name} hold\n" for name in names)
        code, out, err = self.run(["dpkg", "--set-selections"], text)
        if code != 0:
            raise RefusedError(
                "found that dpkg cannot hold {}: {}. expected them on hold. "
                "Fix: sudo apt-mark hold {}".format(
                    ", ".join(names), last_lines(out, err), " ".join(names)
                )
            )


def run_command(argv, text=None):
    """Run a command in its own session, so that a lost connection does not end it."""
    done = subprocess.run(
        argv,
        input=(text or "").encode(),
        capture_output=True,
        env=dict(os.environ, **ENVIRONMENT),
        start_new_session=True,
        check=False,
    )
    return (
        done.returncode,
        done.stdout.decode(errors="replace"),
        done.stderr.decode(errors="replace"),
    )


def parse_packages(text):
    """Parse dpkg-query lines; packages that only left configuration behind are not there."""
    packages = {}
    for line in text.splitlines():
        name, _, rest = line.partition("\t")
        version, _, abbreviation = rest.partition("\t")
        wanted, state, error = (abbreviation + "   ")[:3]
        if state in ("n", "c", " "):
            continue
        complete = state == "i" and wanted in ("i", "h") and error == " "
        packages[name] = {
            "version": version,
            "status": "ii" if complete else abbreviation.strip(),
            "hold": wanted == "h",
        }
    return packages


def torn(packages, pins):
    """What `dpkg --configure` does not finish: (names to remove, arguments to unpack again).

    A removal that was cut is a removal still. Without a version, dpkg has nothing of the package
    that could be used.
    """
    leaving, again = [], []
    for name, found in sorted(packages.items()):
        wanted, state, error = (found["status"] + "   ")[:3]
        version = pins.get(name) or found["version"]
        half = state == "H" or error == "R"
        if (wanted in ("r", "p") and state != "i") or (half and not version):
            leaving.append(name)
        elif half:
            again.append(f"{name}={version}")
    return leaving, again


def parse_policy(text):
    """Parse the version tables of `apt-cache policy`, installed-only versions left out."""
    offered, name, version = {}, None, None
    for line in text.splitlines():
        if line and not line.startswith(" "):
            name = line.rstrip(":")
            offered[name] = []
            continue
        match = re.match(r" (?:\*\*\*|   ) (\S+) -?\d+$", line)
        if match:
            version = match.group(1)
            continue
        # An origin line; a version that only dpkg's own status knows is not offered by anyone.
        origin = re.match(r" {8,}-?\d+ ", line) and "/var/lib/dpkg/status" not in line
        if origin and version and version not in offered[name]:
            offered[name].append(version)
    return offered


def parse_exact_needs(text):
    """Parse `apt-cache show` for dependencies on exactly one version, alternatives left out."""
    needs = {}
    for line in re.findall(r"^(?:Pre-)?Depends: (.+)$", text, re.MULTILINE):
        for clause in line.split(","):
            match = re.fullmatch(r"\s*([a-z0-9][a-z0-9.+-]+)(?::\w+)?\s*\(=\s*(\S+)\)\s*", clause)
            if match:
                needs[match.group(1)] = match.group(2)
    return needs


def last_lines(out, err, count=6):
    """The part of apt's output that says what went wrong."""
    unmet = (out or "").partition("unmet dependencies:\n")[2]
    if unmet:
        reasons = [" ".join(line.split()) for line in unmet.splitlines() if line.startswith(" ")]
        return " | ".join(reasons[:count])
    reasons = dpkg_errors(out)
    lines = [line.strip() for line in (err or "").splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith(("E:", "dpkg: error"))] or lines
    if not errors and not reasons:
        errors = [line.strip() for line in (out or "").splitlines() if line.strip()]
    # The first package that failed has the cause; later ones often fail for its sake.
    return " | ".join(reasons[: count // 2] + errors[-count:]) or "no message"


def dpkg_errors(out):
    """What dpkg says, which apt passes on as its own output: a line, its reason below it."""
    found = []
    for line in (out or "").splitlines():
        if line.startswith("dpkg: error"):
            found.append(line.strip())
        elif line.startswith(" ") and line.strip() and found and found[-1].endswith(":"):
            found[-1] += " " + line.strip()
    return found


def matcher(patterns):
    """Return a predicate for shell patterns; without patterns nothing matches."""
    compiled = [re.compile(fnmatch.translate(each)) for each in patterns]
    return lambda name: any(each.match(name) for each in compiled)


def remember_holds(path, component, names):
    """Record what is to be on hold before the transaction starts: a power cut loses nothing."""
    try:
        recorded = json.loads(path.read_text())
    except (OSError, ValueError):
        recorded = {}
    if recorded.get(component) == names:
        return
    recorded[component] = names
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    candidate = path.with_name(path.name + ".new")
    with candidate.open("w") as handle:
        handle.write(json.dumps(recorded, indent=1, sort_keys=True) + "\n")
        handle.flush()
        os.fsync(handle.fileno())
    candidate.replace(path)


def recorded_holds(path):
    """Return all names that a transaction recorded as to be held."""
    try:
        recorded = json.loads(path.read_text())
    except (OSError, ValueError):
        return set()
    return {name for names in recorded.values() for name in names}


class Transaction:
    """One component's packages on one node."""

    def __init__(self, apt, given, holds_file=HOLDS_FILE):
        self.apt = apt
        self.given = given
        self.holds_file = Path(holds_file)
        self.pins = {pin["name"]: str(pin["version"]) for pin in given["packages"]}
        in_family, elsewhere = matcher(given["family"]), matcher(given["not_family"])
        self.is_family = lambda name: name in self.pins or (in_family(name) and not elsewhere(name))
        self.result = {"changed": False, "repaired": [], "held": [], "msg": "", "diff": {}}

    def obsolete(self, packages):
        """Installed packages that make way, never one that is pinned."""
        leaves = matcher(self.given["remove"])
        return sorted(name for name in packages if leaves(name) and name not in self.pins)

    def wrong(self, packages):
        """Pinned packages that are not installed exactly so."""
        return sorted(
            name
            for name, version in self.pins.items()
            if packages.get(name, {}).get("version") != version
            or packages.get(name, {}).get("status") != "ii"
        )

    def loose(self, packages):
        """Installed members of the family, or of a recorded hold, that are not on hold."""
        recorded = recorded_holds(self.holds_file)
        return sorted(
            name
            for name, found in packages.items()
            if found["status"][1:2] == "i"
            and not found["hold"]
            and (self.is_family(name) or name in recorded)
        )

    def describe(self, packages, wrong, obsolete):
        """Before and after, for --diff."""

        def line(name, version):
            return f"{name}={version}\n"

        before = [line(n, packages[n]["version"]) for n in [*wrong, *obsolete] if n in packages]
        before += [f"{name} not on hold\n" for name in self.loose(packages)]
        after = [line(name, self.pins[name]) for name in wrong]
        after += [f"{name} on hold\n" for name in sorted({*wrong, *self.loose(packages)})]
        self.result["diff"] = {"before": "".join(sorted(before)), "after": "".join(sorted(after))}

    def plan(self):
        """Check mode: what would change, also where no repository is configured yet."""
        packages = self.apt.packages()
        wrong, obsolete = self.wrong(packages), self.obsolete(packages)
        self.refuse_downgrades(packages, wrong)
        self.result["changed"] = bool(wrong or obsolete or self.loose(packages))
        self.describe(packages, wrong, obsolete)
        self.result["msg"] = "would install " + ", ".join(
            f"{name}={self.pins[name]}" for name in wrong
        )

    def present(self):
        """Install what is missing; hold the family whatever happens."""
        self.heal()
        packages = self.apt.packages()
        wrong, obsolete = self.wrong(packages), self.obsolete(packages)
        self.describe(packages, wrong, obsolete)
        try:
            if wrong or obsolete:
                self.install(packages, wrong, obsolete)
        finally:
            self.hold()
        self.result["msg"] = "installed " + ", ".join(wrong) if wrong else "already as pinned"

    def install(self, packages, wrong, obsolete):
        """Refuse what must not happen, then let apt do it and read back the result."""
        self.refuse_downgrades(packages, wrong)
        # Pins are exact: lists that offer them are good enough, older lists are refreshed.
        if self.given["update"] and self.missing(wrong):
            error = self.apt.update()
            self.refuse_missing(wrong, error)
        needs = self.apt.exact_needs({name: self.pins[name] for name in wrong}) if wrong else {}
        needs = {
            name: version
            for name, version in needs.items()
            if name not in self.pins and packages.get(name, {}).get("version") != version
        }
        arguments = [f"{name}={self.pins[name]}" for name in wrong]
        arguments += [f"{name}={needs[name]}" for name in sorted(needs)]
        arguments += [f"{name}-" for name in obsolete]
        if self.given["allow_downgrade"]:
            arguments.append("--allow-downgrades")
        self.refuse_strangers(packages, self.apt.simulate(arguments))
        family = {name for name in packages if self.is_family(name)} - set(obsolete)
        remember_holds(self.holds_file, self.given["component"], sorted(family | set(self.pins)))
        self.result["changed"] = True
        code, out, err = self.apt.apt("install", *arguments)
        self.apt.mark_auto(sorted(set(needs) - set(packages)))
        broken = self.apt.audit()
        if code != 0 or broken:
            raise RefusedError(
                "found that the installation of {} failed: {}{}. expected all installed. "
                "see: dpkg --audit and /var/log/apt/term.log on the node. Fix: remove the cause "
                "and run again, the run continues where this one stopped".format(
                    ", ".join(wrong),
                    last_lines(out, err),
                    "; half installed: " + ", ".join(broken) if broken else "",
                )
            )
        still = self.wrong(self.apt.packages())
        if still:
            raise RefusedError(
                "found {} in another version than pinned after apt reported success. "
                "see: apt-cache policy {}".format(", ".join(still), still[0])
            )

    def heal(self):
        """Finish what a power cut or a killed dpkg left in the middle, and say so."""
        broken = self.apt.audit()
        if broken or interrupted():
            self.apt.repair({**self.given["pins"], **self.pins})
            self.result["repaired"] = broken
            self.result["changed"] = True

    def hold(self):
        """Hold every installed member; foreign holds are not touched."""
        loose = self.loose(self.apt.packages())
        if loose:
            self.apt.hold(loose)
            self.result["held"] = loose
            self.result["changed"] = True

    def refuse_downgrades(self, packages, wrong):
        """An older version needs the operator's word."""
        if self.given["allow_downgrade"]:
            return
        older = [
            name
            for name in wrong
            if name in packages and self.is_older(self.pins[name], packages[name]["version"])
        ]
        if older:
            name = older[0]
            raise RefusedError(
                "found {} {} installed, expected {}, which is older: a downgrade is not done "
                "silently{}. see: dpkg-query -W {}. Fix: to go back on purpose add "
                "-e package_lock_allow_downgrade=true, else choose a version set that is not "
                "older".format(
                    name,
                    packages[name]["version"],
                    self.pins[name],
                    f" ({len(older)} packages)" if len(older) > 1 else "",
                    name,
                )
            )

    def is_older(self, left, right):
        """Compare as dpkg does."""
        code, _, _ = self.apt.run(["dpkg", "--compare-versions", left, "lt", right])
        return code == 0

    def missing(self, wrong):
        """Return `{name: offered versions}` of pins that no repository offers."""
        offered = self.apt.policy(wrong)
        return {
            name: offered.get(name, [])
            for name in wrong
            if self.pins[name] not in offered.get(name, [])
        }

    def refuse_missing(self, wrong, update_error):
        """A pin that no repository offers, said before anything is touched."""
        for name, versions in self.missing(wrong).items():
            unread = (
                f"; package lists could not be refreshed: {update_error}" if update_error else ""
            )
            raise RefusedError(
                "version not in repository: found "
                f"{', '.join(versions) or 'no version'} of {name}, "
                f"expected {self.pins[name]}{unread}. see: apt-cache policy {name}. Fix: mirror "
                "that version, or override the component in railweld_version_overrides"
            )

    def refuse_strangers(self, packages, planned):
        """Kernels, foreign holds and foreign removals are not this transaction's business."""
        refused = matcher(self.given["refuse"])
        kernels = [name for name in planned["Inst"] if refused(name)]
        if kernels:
            raise RefusedError(
                "found that the transaction would install {}, expected no new kernel: the driver "
                "is built for the one that runs. see: apt-get -s install. Fix: install the "
                "kernel first, reboot into it, then run again".format(", ".join(kernels))
            )
        touched = [*planned["Inst"], *planned["Remv"]]
        recorded = recorded_holds(self.holds_file)
        held = [
            name
            for name in touched
            if packages.get(name, {}).get("hold")
            and not self.is_family(name)
            and name not in recorded
        ]
        if held:
            raise RefusedError(
                "found that the transaction would change {}, which somebody else put on hold. "
                "expected foreign holds untouched. see: apt-mark showhold. Fix: release the "
                "hold, or choose versions that fit it".format(", ".join(held))
            )
        leaves = matcher(self.given["remove"])
        removed = [
            name for name in planned["Remv"] if not self.is_family(name) and not leaves(name)
        ]
        if removed:
            raise RefusedError(
                "found that the transaction would remove {}, expected only packages of its own "
                "family to go. see: apt-get -s install. Fix: remove the conflict by hand if it is "
                "wanted, then run again".format(", ".join(removed))
            )


def running_unit(units, run=run_command):
    """Return the first of the units that is at work, None when all are idle."""
    for unit in units:
        _, out, _ = run(["systemctl", "is-active", unit])
        if out.strip() in ("active", "activating", "deactivating", "reloading"):
            return unit
    return None


def wait_or_refuse(timeout, busy=lambda: None):
    """Wait for the package locks and whoever else is at work; return the seconds waited."""
    holder, waited = wait_for_locks(timeout, busy=busy)
    if holder:
        raise RefusedError(
            f"found the package lock still held by {holder} after {int(waited)} s, expected it "
            "free. see: fuser -v /var/lib/dpkg/lock-frontend. Fix: let it finish or stop it, or "
            "raise railweld_apt_lock_timeout_s"
        )
    return round(waited, 1)


def interrupted(folder="/var/lib/dpkg/updates"):
    """True when dpkg died in the middle of writing its database."""
    try:
        return any(path.name.isdecimal() for path in Path(folder).iterdir())
    except OSError:
        return False


def main():
    """Ansible's entry point."""
    module = AnsibleModule(
        argument_spec={
            "state": {
                "type": "str",
                "choices": ["present", "held", "unlocked"],
                "default": "present",
            },
            "idle_units": {"type": "list", "elements": "str", "default": []},
            "component": {"type": "str", "default": "base"},
            "packages": {"type": "list", "elements": "dict", "default": []},
            "remove": {"type": "list", "elements": "str", "default": []},
            "pins": {"type": "dict", "default": {}},
            "family": {"type": "list", "elements": "str", "default": []},
            "not_family": {"type": "list", "elements": "str", "default": []},
            "refuse": {
                "type": "list",
                "elements": "str",
                "default": ["linux-image-*", "linux-generic*"],
            },
            "allow_downgrade": {"type": "bool", "default": False},
            "lock_timeout": {"type": "int", "default": 600},
            "update": {"type": "bool", "default": True},
        },
        supports_check_mode=True,
    )
    given = module.params
    # A broken connection must not stop the transaction between installing and holding.
    for name in (signal.SIGHUP, signal.SIGPIPE):
        signal.signal(name, signal.SIG_IGN)
    transaction = Transaction(Apt(given["lock_timeout"]), given)
    result = transaction.result
    try:
        if module.check_mode:
            result["waited_s"] = 0.0
            transaction.plan()
        else:
            units = given["idle_units"]
            result["waited_s"] = wait_or_refuse(given["lock_timeout"], lambda: running_unit(units))
            if given["state"] == "present":
                transaction.present()
            elif given["state"] == "held":
                transaction.heal()
                transaction.hold()
    except RefusedError as error:
        module.fail_json(**dict(result, msg=str(error)))
    module.exit_json(**result)


if __name__ == "__main__":
    main()
