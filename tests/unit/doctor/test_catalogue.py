"""Every entry of the catalogue finds its samples and leaves its near misses alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from railweld.doctor.catalogue import CatalogueError, Entry, load, read
from railweld.doctor.diagnosis import Doctor, refuse_untrue
from railweld.doctor.layers import Layer
from railweld.gpus import APPLICATION_XIDS
from tests.unit import check_ids

ENTRIES = load()


def found(log: str, entries: tuple[Entry, ...] = ENTRIES) -> set[str]:
    """Ids of all findings in a log."""
    doctor = Doctor(entries)
    doctor.read_blocks("job.log", [log.encode()])
    return {
        each.entry.id for incident in doctor.diagnose().incidents for each in incident.findings()
    }


def cases(kind: str) -> list[object]:
    return [
        pytest.param(entry, text, id=f"{entry.id}-{number}")
        for entry in ENTRIES
        for number, text in enumerate(getattr(entry, kind))
    ]


@pytest.mark.parametrize(("entry", "sample"), cases("samples"))
def test_entry_is_found_in_its_sample(entry: Entry, sample: str) -> None:
    assert entry.id in found(sample)


@pytest.mark.parametrize(("entry", "text"), cases("near_misses"))
def test_entry_is_not_found_in_its_near_miss(entry: Entry, text: str) -> None:
    assert entry.id not in found(text)


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.id)
def test_each_pattern_has_a_sample_of_its_own(entry: Entry) -> None:
    """A pattern that no sample needs is not known to work."""
    for pattern in entry.patterns:
        alone = entry.model_copy(update={"patterns": (pattern,)})
        assert any(entry.id in found(sample, (alone,)) for sample in entry.samples), pattern


def test_files_are_named_after_the_layer_that_they_begin_with() -> None:
    assert {entry.layer for entry in ENTRIES} == set(Layer)


def test_application_xids_are_those_of_the_checks() -> None:
    line = "kernel: NVRM: Xid (PCI:0000:3b:00): {}, pid=1, name=python3\n"
    others = set(range(1, 200)) - APPLICATION_XIDS
    assert found("".join(map(line.format, APPLICATION_XIDS))) == {"xid-application"}
    assert found("".join(map(line.format, others))) == {"xid-hardware"}


GOOD = """\
version: 1
entries:
  - id: site-proxy
    title: The proxy refuses the job
    layer: job
    patterns: ['proxy refused (?P<subject>\\S+)']
    cause: The site's proxy lets only registered jobs out.
    confirm: [curl -v https://example.org]
    fix: [register the job]
    sources: [site handbook]
    basis: inferred
    samples: ['proxy refused job-12']
    near_misses: ['proxy accepted job-12']
"""


def test_own_file_adds_to_the_catalogue(tmp_path: Path) -> None:
    file = tmp_path / "own.yml"
    file.write_text(GOOD)
    entries = load([file])
    assert len(entries) == len(ENTRIES) + 1
    assert found("proxy refused job-7\n", entries) == {"site-proxy"}


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("layer: job", "layer: wire", ("own.yml:5", "layer", "wire")),
        ("layer: job", "layer: job\n    colour: red", ("own.yml:6", "colour", "no entry has")),
        ("    layer: job\n", "", ("own.yml:3", "layer", "expected this key")),
        ("refused (?P", "(refused (?P", ("own.yml:6", "patterns", "regular expression")),
        ("'proxy refused (?P<subject>\\S+)'", "'.*'", ("own.yml:6", "match nothing")),
        ("basis: inferred", "basis: guess", ("own.yml:11", "basis", "guess")),
        ("    near_misses: ['proxy accepted job-12']\n", "", ("near_misses",)),
        ("version: 1", "version: 2", ("own.yml:1", "version")),
        ("id: site-proxy", "id: memlock", ("memlock", "own catalogue")),
        ("    basis:", "    explains: [nobody]\n    basis:", ("explains", "nobody")),
        ("    layer: job\n", "    layer: job\n    layer: gpu\n", ("own.yml:6", "layer", "twice")),
        ("  - id", "  -- id", ("own.yml", "no YAML")),
        ("only", "only", ()),
    ],
)  # fmt: skip
def test_wrong_file_is_refused_with_line_and_key(
    old: str, new: str, words: tuple[str, ...], tmp_path: Path
) -> None:
    file = tmp_path / "own.yml"
    file.write_text(GOOD.replace(old, new))
    if not words:
        load([file])
        return
    with pytest.raises(CatalogueError) as caught:
        load([file])
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    "content", [b"", b"\xff\xfe\x00", b"- a\n- b\n", b"version: 1\nentries: []\n"]
)
def test_file_that_is_no_catalogue_is_refused(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "own.yml"
    file.write_bytes(content)
    with pytest.raises(CatalogueError, match=r"own\.yml"):
        load([file])


@pytest.mark.parametrize(
    ("old", "new", "word"),
    [("['proxy refused job-12']", "['proxy shut']", "samples"),
     ("proxy accepted job-12", "the proxy refused job-12", "near_misses")],
)  # fmt: skip
def test_file_whose_samples_do_not_fit_is_refused(old: str, new: str, word: str) -> None:
    refuse_untrue(read(GOOD, "own.yml"))
    with pytest.raises(CatalogueError, match=word):
        refuse_untrue(read(GOOD.replace(old, new), "own.yml"))


def test_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CatalogueError, match="cannot be read"):
        load([tmp_path / "nowhere.yml"])


def test_all_faults_of_a_file_are_named_at_once() -> None:
    text = GOOD.replace("layer: job", "layer: wire").replace("basis: inferred", "basis: guess")
    with pytest.raises(CatalogueError) as caught:
        read(text, "own.yml")
    assert [line.split(": ")[1] for line in str(caught.value).splitlines()] == [
        "entries[0].layer",
        "entries[0].basis",
    ]


def test_every_check_that_an_entry_names_can_be_emitted() -> None:
    unknown = [
        (e.id, check)
        for e in ENTRIES
        for check in (*e.checks, *e.warnings)
        if not check_ids.exists(check)
    ]
    assert unknown == []
