"""Who a job is in its pods."""

from __future__ import annotations

import pytest

from tests.integration.bridge.world import World

pytestmark = [pytest.mark.lab, pytest.mark.deep]

CREW = 3001


def test_a_pod_has_the_groups_of_its_user_and_their_files(world: World) -> None:
    slurm = world.slurm
    slurm.sh(f"getent group crew || groupadd --gid {CREW} crew; usermod --append --groups crew bob")
    slurm.sh("install -d -m 2770 -o root -g crew /data/crew")
    text = "#!/bin/sh\nid -u; id -g; id -G\necho made > /data/crew/$SLURM_JOB_ID\n"
    of_bob = slurm.script(text, user="bob")
    slurm.wait_state(of_bob, "COMPLETED")
    uid, gid, groups = world.output(of_bob, "bob").splitlines()
    assert (uid, gid) == ("2002", "2002")
    assert {int(each) for each in groups.split()} == {2002, CREW}
    assert slurm.run("stat", "-c", "%U %G", f"/data/crew/{of_bob}").stdout == "bob crew\n"
    # Nobody else's: not of a user who is in no other, and who cannot write there.
    of_alice = slurm.script(text)
    slurm.wait_state(of_alice, "FAILED")
    assert world.output(of_alice).splitlines()[:3] == ["2001", "2001", "2001"]
