"""The replay of a trace (`hack/bench/run.py packing`) on its small synthetic one: figures, files, and traces that are wrong."""

import gzip
import json
from xml.etree import ElementTree as ET

import pytest

from hack.bench import packing
from hack.bench.packing_replay import Cluster, arrival, churn, policy_of
from hack.bench.packing_trace import BadTrace, Job, read_trace

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


def test_a_load_that_is_never_reached_does_not_stop_the_churn(tmp_path):
    """The node has CPU for three of its eight cards."""
    jobs = "".join(f"j{number},32000,1,1,1000,\n" for number in range(4))
    found = churn(read_trace(trace_of(tmp_path, jobs)), policy_of("binpack"), 42, load=0.9, events=40)
    assert found.rejected == pytest.approx(50, abs=10)


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
    reported = capsys.readouterr()
    assert "| fair-share:theta=0.7 | " in reported.out
    assert "[4/4]" in reported.err
    figures = json.loads((tmp_path / "f.json").read_text())
    assert [row["policy"] for row in figures["policies"]] == ["binpack", "fair-share:theta=0.7"]
    assert ET.parse(tmp_path / "f.svg").getroot().tag.endswith("svg")


def test_an_unknown_policy_is_told(capsys):
    assert packing.main(["--policies", "tight"]) == 2
    assert "'tight' is not one of binpack, spread, fair-share" in capsys.readouterr().err


def trace_of(tmp_path, jobs, nodes=NODES):
    (tmp_path / "nodes.csv").write_text(nodes)
    (tmp_path / "jobs.csv").write_text(HEAD + jobs)
    return tmp_path


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ("j,1000,1,1,1500,\n", r"jobs.csv:2: gpu_milli 1500 of num_gpu 1: 1 to 999 are a part of each card"),
        ("j,1000,1,1,0,\n", r"jobs.csv:2: gpu_milli 0 of num_gpu 1"),
        ("j,much,1,1,500,\n", r"jobs.csv:2: cpu_milli 'much' is no integer"),
        ("j,1000.5,1,1,500,\n", r"jobs.csv:2: cpu_milli '1000.5' is no integer"),
        ("j,1000,1,0,500,\n", r"jobs.csv: no job asks for a card"),
        ("j,1000,1\n", r"jobs.csv:2: num_gpu '' is no integer"),
        ("", r"jobs.csv: has no jobs"),
    ],
)
def test_jobs_that_are_wrong(tmp_path, row, problem):
    with pytest.raises(BadTrace, match=problem):
        read_trace(trace_of(tmp_path, row))


def test_a_list_is_chosen_where_there_are_several(tmp_path):
    trace_of(tmp_path, "j,1000,1,1,500,A|B\n")
    (tmp_path / "more.csv").write_text(HEAD + "k,1000,1,8,1000,\n")
    with pytest.raises(BadTrace, match=r"one list of jobs \(--jobs names the one.*found jobs.csv, more.csv"):
        read_trace(tmp_path)
    assert read_trace(tmp_path, "more.csv").jobs[0].cards == 8
    assert read_trace(tmp_path, "jobs").jobs[0].models == ("A", "B")
    with pytest.raises(BadTrace, match=r"other.csv: is no list of jobs; the folder has jobs.csv, more.csv"):
        read_trace(tmp_path, "other.csv")
    (tmp_path / "all.csv").write_text(NODES + "n2,96000,393216,0,\n")
    with pytest.raises(BadTrace, match=r"one list of nodes \(--nodes names the one.*found all.csv, nodes.csv"):
        read_trace(tmp_path, "jobs")
    assert [machine.cards for machine in read_trace(tmp_path, "jobs", "all.csv").machines] == [8, 0]


def test_files_as_other_programs_write_them(tmp_path):
    columns = "gpu_spec,name,extra,cpu_milli, memory_mib ,num_gpu,gpu_milli"
    rows = ["A | B,j,x,1000.0,2048,2,500", ",k,,1000,2048,0,0"]
    with gzip.open(tmp_path / "Pods.CSV.gz", "wt", encoding="utf-8-sig", newline="") as stream:
        stream.write("\r\n".join([columns, *rows, ""]))
    (tmp_path / "machines.csv").write_text(NODES.replace("\n", "\r\n"), encoding="utf-8-sig", newline="")
    (tmp_path / "notes.csv").write_bytes(b"\xff\xfe no list of anything")
    trace = read_trace(tmp_path)
    assert trace.name == "Pods"
    assert trace.jobs == (Job(1000, 2048, 2, 500, ("A", "B")), Job(1000, 2048, 0, 0, ()))
    assert trace.machines[0].model == "A"


def test_a_variant_of_the_trace_that_lacks_columns_nobody_needs(tmp_path):
    """As the lists of openb without models and classes of service: what is not there is empty."""
    (tmp_path / "nodes.csv").write_text("sn,cpu_milli,memory_mib,gpu\nn1,96000,393216,8\n")
    (tmp_path / "jobs.csv").write_text("name,cpu_milli,memory_mib,num_gpu,gpu_milli\na,1000,1024,1,500\n")
    trace = read_trace(tmp_path)
    assert trace.machines[0].model == ""
    assert trace.jobs[0].models == ()


def test_nodes_without_cards_are_no_cluster(tmp_path):
    with pytest.raises(BadTrace, match=r"nodes.csv: no node has a card"):
        read_trace(trace_of(tmp_path, "j,1000,1,1,500,\n", NODES.replace(",8,A", ",0,")))


def test_parts_of_several_cards_and_a_model_in_quotes(tmp_path):
    trace = read_trace(trace_of(tmp_path, 'j,1000,1,2,500,"A""B"\n', NODES.replace(",A", ',"A""B"')))
    cluster = Cluster(trace, policy_of("fair-share"), 1)
    placed = [cluster.place(trace.jobs[0]) is not None for _ in range(9)]
    assert placed == [True] * 8 + [False]


def test_a_run_goes_on_where_it_was_stopped(tmp_path, capsys, monkeypatch):
    figures = tmp_path / "f.json"
    options = ["--load", "0.1", "--events", "20", "--churn-loads", "0.1", "--json", str(figures), "--seeds", "42"]
    real, done = packing._measured, []

    def until_the_second(run):
        if len(done) == 1:
            raise KeyboardInterrupt
        done.append(run)
        return real(run)

    monkeypatch.setattr(packing, "_measured", until_the_second)
    assert packing.main([*options, "--policies", "binpack"]) == 130
    assert "the same command goes on" in capsys.readouterr().err
    monkeypatch.setattr(packing, "_measured", real)
    assert packing.main([*options, "--policies", "binpack"]) == 0
    assert "[1/1] binpack, churn at 10 %" in capsys.readouterr().err
    before = figures.read_text()
    assert packing.main([*options, "--policies"]) == 0
    reported = capsys.readouterr()
    assert "| binpack | " in reported.out
    assert "| 1, 1 |" in reported.out
    assert (reported.err, figures.read_text()) == ("", before)
    assert packing.main([*options, "--policies", "binpack", "--events", "30"]) == 0
    assert "[1/1]" in capsys.readouterr().err
    assert packing.main([*options, "--policies", "spread", "--churn-loads"]) == 0
    assert [row["policy"] for row in json.loads(figures.read_text())["policies"]] == ["binpack", "spread"]


def test_figures_of_something_else_are_not_gone_on_with(tmp_path, capsys):
    figures = tmp_path / "f.json"
    for text, problem in (
        ('{"load": 1}', "has no figures of this tool"),
        ('{"policies": []}', "trace None, not 'jobs'"),
    ):
        figures.write_text(text)
        assert packing.main(["--json", str(figures)]) == 2
        assert problem in capsys.readouterr().err
        assert figures.read_text() == text
