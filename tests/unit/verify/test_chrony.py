"""The clock: what passes the gate, and every way in which it must not."""

from __future__ import annotations

import pytest

from railweld.verify.roles import chrony


def test_synchronised_client_passes(observed, bad):
    assert bad(chrony.checks(observed())) == {}


def test_offset_beyond_the_limit_is_refused_with_both_numbers(observed, bad):
    found = bad(chrony.gate(observed({"node.time.offset_s": -0.8})))
    assert list(found) == ["chrony.offset"]
    assert "found 800.0 ms off, expected at most 100 ms" in found["chrony.offset"]
    assert "chronyc makestep" in found["chrony.offset"]


def test_offset_at_the_limit_passes(observed, bad):
    assert bad(chrony.gate(observed({"node.time.offset_s": 0.1}))) == {}


@pytest.mark.parametrize("state", ["inactive", "absent"])
def test_dead_daemon_is_refused_although_its_last_offset_was_fine(observed, bad, state):
    found = bad(chrony.gate(observed({"node.time.daemon": state})))
    assert list(found) == ["chrony.daemon"]
    assert f"found chrony {state}" in found["chrony.daemon"]


def test_unsynchronised_daemon_is_refused_although_it_reports_no_offset(observed, bad):
    changes = {
        "node.time.synced": False,
        "node.time.offset_s": None,
        "node.time.refid": "00000000",
        "node.time.leap": "Not synchronised",
    }
    assert list(bad(chrony.gate(observed(changes)))) == ["chrony.synchronised"]


def test_source_that_stopped_answering_is_refused_while_chronyd_still_calls_itself_synced(
    observed, bad
):
    silent = [{"mode": "^", "state": "?", "address": "10.0.0.10", "reach": "0"}]
    found = bad(chrony.gate(observed({"node.time.sources": silent})))
    assert list(found) == ["chrony.reachable"]


def test_daemon_that_runs_with_an_older_configuration_is_found(observed, bad):
    other = [{"mode": "^", "state": "*", "address": "198.51.100.7", "reach": "377"}]
    found = bad(chrony.gate(observed({"node.time.sources": other})))
    assert list(found) == ["chrony.sources"]
    assert "not asked: 10.0.0.10" in found["chrony.sources"]


def test_time_server_given_by_name_is_not_compared_with_addresses(observed, bad):
    assert bad(chrony.gate(observed({"site.time.servers": ["head1.example.org"]}))) == {}


def test_missing_observation_is_unknown_and_not_a_pass(observed, bad, absent):
    assert "chrony.daemon" in bad(chrony.gate(observed({"node.time": absent})))


def test_missing_offset_is_unknown_and_not_a_pass(observed, bad):
    assert "chrony.offset" in bad(chrony.gate(observed({"node.time.offset_s": None})))


def test_first_server_of_a_site_without_upstream_may_follow_itself(observed, bad):
    changes = {
        "site.time.sources": [],
        "host.address": "10.0.0.10",
        "node.time.refid": "7F7F0101",
        "node.time.sources": [],
        "node.time.offset_s": 0.0,
    }
    assert bad(chrony.gate(observed(changes))) == {}


def test_server_that_lost_its_upstream_is_refused_although_it_keeps_serving(observed, bad):
    changes = {"host.address": "10.0.0.10", "node.time.refid": "7F7F0101"}
    found = bad(chrony.gate(observed(changes)))
    assert list(found) == ["chrony.reference"]
    assert "railweld_time_sources" in found["chrony.reference"]


@pytest.mark.parametrize(
    "state",
    [{"active": "active", "enabled": "disabled"}, {"active": "inactive", "enabled": "enabled"}],
    ids=["runs", "would run after the next boot"],
)
def test_second_daemon_is_named(observed, bad, state):
    found = bad(chrony.checks(observed({"node/units/systemd-timesyncd.service": state})))
    assert list(found) == ["chrony.single_daemon"]
    assert "systemd-timesyncd.service" in found["chrony.single_daemon"]


def test_masked_daemon_is_no_competitor(observed, bad):
    state = {"active": "inactive", "enabled": "masked"}
    assert bad(chrony.checks(observed({"node/units/systemd-timesyncd.service": state}))) == {}


def test_guard_refuses_a_site_without_any_source(observed, bad):
    found = bad(chrony.guard(observed({"site.time.sources": [], "site.time.servers": []})))
    assert list(found) == ["chrony.source_named"]


def test_guard_accepts_upstream_sources_without_time_servers(observed, bad):
    assert bad(chrony.guard(observed({"site.time.servers": []}))) == {}
