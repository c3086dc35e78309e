"""The replay of a trace (`hack/bench/run.py packing`) on its small synthetic one: figures, files, and traces that are wrong."""

import json
from xml.etree import ElementTree as ET

import pytest

from hack.bench import packing
from hack.bench.packing_replay import arrival, churn, policy_of
from hack.bench.packing_trace import BadTrace, read_trace

NODES = "sn,cpu_milli,memory_mib,gpu,model\nn1,96000,393216,8,A\n"
HEAD = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\n"


@pytest.fixture(scope="module")
def small():
    return read_trace(packing.SMALL)


def test_the_small_trace_has_what_the_large_one_has(small):
    assert small.wide_cpu == 80_000
    assert {job.cards for job in small.jobs} == {0, 1, 2, 4, 8}
    assert any(job.models for job in small.jobs)
    assert 0.9 < sum(job.demand for job in small.jobs) / small.capacity < 1.1


def test_arrivals_are_all_jobs_and_then_some(small):
    found = list(small.arrivals(42, 1.3))
    assert sorted(map(repr, found[: len(small.jobs)])) == sorted(map(repr, small.jobs))
    assert found == list(small.arrivals(42, 1.3)) != list(small.arrivals(43, 1.3))
    offered = sum(job.demand for job in found)
    assert offered <= 1.3 * small.capacity + 8_000


def test_fair_share_packs_better_and_keeps_nodes_open(small):
    spread, fair = (arrival(small, policy_of(name), 42) for name in ("spread", "fair-share"))
    assert fair.allocated > spread.allocated
    assert fair.roomy > spread.roomy


def test_churn_holds_the_load(small):
    found = churn(small, policy_of("fgd"), 42, load=0.4, events=60)
    assert 0 <= found.rejected < 50
    assert found.roomy > 0


def test_table_picture_and_figures(tmp_path, capsys):
    options = [
        "--seeds",
        "42",
        "--policies",
        "binpack",
        "fair-share:theta=0.7",
        "--churn-loads",
        "0.5",
        "--events",
        "40",
    ]
    options += ["--load", "0.3", "--json", str(tmp_path / "f.json"), "--svg", str(tmp_path / "f.svg")]
    assert packing.main(options) == 0
    told = capsys.readouterr()
    assert "| fair-share:theta=0.7 | " in told.out
    assert "[4/4]" in told.err
    figures = json.loads((tmp_path / "f.json").read_text())
    assert [row["policy"] for row in figures["policies"]] == ["binpack", "fair-share:theta=0.7"]
    assert ET.parse(tmp_path / "f.svg").getroot().tag.endswith("svg")


def test_an_unknown_policy_is_told(capsys):
    assert packing.main(["--policies", "tight"]) == 2
    assert "'tight' is not one of binpack, spread, fair-share, fgd" in capsys.readouterr().err


def trace_of(tmp_path, jobs, nodes=NODES):
    (tmp_path / "nodes.csv").write_text(nodes)
    (tmp_path / "jobs.csv").write_text(HEAD + jobs)
    return tmp_path


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ("j,1000,1,2,500,\n", r"jobs.csv:2: num_gpu 2 and gpu_milli 500"),
        ("j,1000,1,0,500,\n", r"jobs.csv:2: num_gpu 0 and gpu_milli 500"),
        ("j,much,1,1,500,\n", r"jobs.csv:2: cpu_milli 'much' is no integer"),
        ("j,1000,1\n", r"jobs.csv:2: num_gpu '' is no integer"),
        ("", r"jobs.csv: has no jobs"),
    ],
)
def test_jobs_that_are_wrong(tmp_path, row, problem):
    with pytest.raises(BadTrace, match=problem):
        read_trace(trace_of(tmp_path, row))


def test_a_list_of_jobs_is_chosen_where_there_are_several(tmp_path):
    trace_of(tmp_path, "j,1000,1,1,500,A|B\n")
    (tmp_path / "more.csv").write_text(HEAD + "k,1000,1,8,1000,\n")
    with pytest.raises(BadTrace, match=r"--jobs names the one to replay.*found jobs.csv, more.csv"):
        read_trace(tmp_path)
    assert read_trace(tmp_path, "more.csv").jobs[0].cards == 8
    assert read_trace(tmp_path, "jobs.csv").jobs[0].models == ("A", "B")
    with pytest.raises(BadTrace, match=r"other.csv: is no list of jobs"):
        read_trace(tmp_path, "other.csv")
