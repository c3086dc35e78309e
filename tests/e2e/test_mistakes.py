"""What users are told about their mistakes, one folder of tests/fixtures/mistakes each (see the README there).

All cases are applied on one cluster, each in a namespace of its own, and waited for together; all differences are reported
together.
"""

import json
import re
import subprocess
import sys
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml

from controller.insight.manifests import BadManifest
from controller.insight.simulation import SimulationSettings, simulate
from hack.controlplane.api import ApiError
from hami_dra.kube.documents import BadDocument, Document, read_documents
from tests.e2e.lab import A10G, EVENTS, T4, read_yaml

FOLDER = Path(__file__).parents[1] / "fixtures" / "mistakes"
PLACES = {"event", "warning", "refused", "simulate", "doctor", "runs"}
REFUSALS = {"FilteringFailed", "InvalidClaim"}
"""Reasons of events for which `hami-dra simulate` must say the same."""
NAMESPACES = "/api/v1/namespaces"
CLUSTER = (
    ("resource.k8s.io/v1", "ResourceSlice", "/apis/resource.k8s.io/v1/resourceslices"),
    ("resource.k8s.io/v1", "DeviceClass", "/apis/resource.k8s.io/v1/deviceclasses"),
    ("v1", "Node", "/api/v1/nodes"),
)
"""What a simulation of a case reads of the cluster."""


@dataclass
class Case:
    folder: Path
    told: list = field(init=False)
    """Entries of `told` in expect.yaml, with {namespace} filled in."""
    without: list = field(init=False)
    """Programs of hami-dra that are stopped before."""
    warnings: list = field(default_factory=list)
    refusals: list = field(default_factory=list)

    def __post_init__(self):
        text = (self.folder / "expect.yaml").read_text().replace("{namespace}", self.namespace)
        expected = yaml.safe_load(text)
        self.told, self.without = expected["told"], expected.get("without", [])
        assert all(each["where"] in PLACES for each in self.told), self.folder

    @property
    def namespace(self):
        return f"m{self.folder.name}"

    def objects(self, name):
        path = self.folder / name
        return read_yaml(path) if path.exists() else []

    def subject(self, told):
        """Kind and name of what is told about."""
        if "about" in told:
            return tuple(told["about"].split("/"))
        pods = [each for each in self.objects("manifest.yaml") if each["kind"] == "Pod"]
        return ("Pod", pods[0]["metadata"]["name"]) if pods else ("File", told["file"])

    @property
    def phase(self):
        return "stopped" if self.without else "busy" if (self.folder / "setup.yaml").exists() else "empty"


def cases():
    return [Case(each.parent) for each in sorted(FOLDER.glob("*/expect.yaml"))]


def matches(sentence, text):
    """Whether the text is the sentence, in which `...` stands for anything."""
    return re.fullmatch(".*".join(map(re.escape, sentence.strip().split("..."))), text, re.DOTALL) is not None


class Ward:
    """The cluster with all cases on it."""

    def __init__(self, lab):
        self.lab = lab
        self.api = lab.api

    @contextmanager
    def without(self, names):
        """The programs of these names do not run."""
        programs = [self.lab.hami.programs[name].process for name in sorted(names)]
        for process in programs:
            process.stop()
        try:
            yield
        finally:
            for process in programs:
                process.start()
            if programs:
                self.lab.hami.wait_ready()

    # -- applying ----------------------------------------------------------------------------------------------------

    def namespaces(self, cases):
        for case in cases:
            labels = {"hami.io/webhook": "enabled"}
            self.api.create(NAMESPACES, {"metadata": {"name": case.namespace, "labels": labels}})
        for case in cases:
            path = f"{NAMESPACES}/{case.namespace}/serviceaccounts/default"
            self.api.wait_for(f"the service account of {case.namespace}", lambda path=path: self.api.get(path))

    def apply(self, case, name):
        for item in case.objects(name):
            if item["kind"] == "Node":
                spec = item.get("spec", {})
                self.lab.plane.nodes.create(
                    item["metadata"]["name"], labels=item["metadata"].get("labels"), taints=spec.get("taints", ())
                )
                continue
            try:
                _, warnings = self.api.add_heard(self.placed(case, item))
                case.warnings += warnings
            except ApiError as error:
                case.refusals.append(error.message)

    def clear(self, cases):
        """Delete the cases; what else they made (classes, nodes) stays until the lab closes."""
        for case in cases:
            self.api.delete(f"{NAMESPACES}/{case.namespace}")
            self.api.delete(self.pods_of(case.namespace), gracePeriodSeconds=0)
        for case in cases:
            for item in (*case.objects("manifest.yaml"), *case.objects("setup.yaml")):
                elsewhere = "namespace" in item["metadata"]
                if item["kind"] != "Node" and (elsewhere or not self.is_namespaced(item)):
                    self.api.remove(item)
        self.api.wait_for(
            "no pods left", lambda: not any(self.api.list(self.pods_of(each.namespace)) for each in cases)
        )

    def placed(self, case, item):
        """The object in the namespace of its case, if it has one."""
        if not self.is_namespaced(item):
            return item
        return {**item, "metadata": {"namespace": case.namespace, **item["metadata"]}}

    def is_namespaced(self, item):
        try:
            return self.api.is_namespaced(item)
        except ApiError:
            return True

    # -- what is said ------------------------------------------------------------------------------------------------

    def pods_of(self, namespace):
        return f"{NAMESPACES}/{namespace}/pods"

    def events(self, case, kind, name, namespace=""):
        found = self.api.list(EVENTS.format(namespace or case.namespace))
        return [
            each
            for each in found
            if each["regarding"]["kind"] == kind and re.fullmatch(re.escape(name) + "(-.*)?", each["regarding"]["name"])
        ]

    def runs(self, case, name):
        try:
            return self.api.get(f"{self.pods_of(case.namespace)}/{name}")["status"].get("phase") == "Running"
        except ApiError:
            return False

    def diagnosed(self):
        """The findings of `hami-dra doctor`."""
        command = [sys.executable, "-m", "controller.cli.main", "doctor", "-o", "json"]
        command += ["--kubeconfig", str(self.lab.plane.admin_kubeconfig)]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert ended.stdout, ended.stderr
        return [f"{each['object']}: {each['problem']}. {each['fix']}" for each in json.loads(ended.stdout)["findings"]]

    def simulated(self, case, file=""):
        """The lines of `hami-dra simulate` about the files of the case, on the nodes of the cluster.

        `file`: the error about this file, which cannot be read.
        """
        if file:
            with pytest.raises(BadDocument) as error:
                read_documents([case.folder / file])
            return [str(error.value)]
        path = case.folder / "manifest.yaml"
        raws = [
            {"apiVersion": version, "kind": kind, **each}
            for version, kind, path_of_all in CLUSTER
            for each in self.api.list(path_of_all)
        ]
        raws += [self.placed(case, item) for item in case.objects("manifest.yaml")]
        documents = [Document(path, number, raw) for number, raw in enumerate(raws, 1)]
        try:
            report = simulate(documents, SimulationSettings())
        except BadManifest as error:
            return [str(error)]
        return [*report.notes, *(each["error"] or each["message"] for each in report.unplaced)]

    def problem(self, case, told):
        """How what is said differs from what is expected; empty while it does not."""
        where, sentence = told["where"], told.get("says", "")
        kind, name = case.subject(told)
        if where == "runs":
            return "" if self.runs(case, name) else f"{name} does not run"
        if where in {"warning", "refused"}:
            said = case.warnings if where == "warning" else case.refusals
        elif where == "simulate":
            said = self.simulated(case, told.get("file", ""))
        elif where == "doctor":
            said = self.diagnosed()
        else:
            events = self.events(case, kind, name, told.get("namespace"))
            said = [each["note"] for each in events if each["reason"] == told["reason"]]
        if any(matches(sentence, text) for text in said):
            return ""
        heard = "".join(f"\n      {text}" for text in dict.fromkeys(said)) or " nothing"
        if where == "event" and not said:
            others = self.events(case, kind, name, told.get("namespace"))
            heard = "".join(f"\n      {each['reason']}: {each['note']}" for each in others) or " nothing"
        return f"{where} about {kind} {name}:\n    expected\n      {sentence}\n    said{heard}"

    def surplus(self, case, told):
        """Refusals beside the one that is expected, and a simulation that says another."""
        if told["where"] != "event" or told["reason"] not in REFUSALS:
            return ""
        kind, name = case.subject(told)
        notes = {each["note"] for each in self.events(case, kind, name) if each["reason"] in REFUSALS}
        others = [note for note in notes if not matches(told["says"], note)]
        if others:
            return f"events of {name} beside the expected one: {others}"
        if not (case.folder / "setup.yaml").exists() and told.get("simulate", True):
            said, sentence = self.simulated(case), told["says"].partition(". Run: hami-dra explain")[0]
            if not any(matches(sentence, text) for text in said):
                return f"simulate says of {name}: {said}\n    where the event says {sentence}"
        return ""

    def differences(self, cases, seconds=25):
        """All that is not as expected, once nothing changes for the better any more."""
        waiting = {(case.folder.name, number): (case, told) for case in cases for number, told in enumerate(case.told)}

        def all_said():
            for key, (case, told) in list(waiting.items()):
                if not self.problem(case, told):
                    del waiting[key]
            return not waiting

        with suppress(TimeoutError):
            self.lab.hami.wait_for("what is said about mistakes", all_said, seconds=seconds)
        found = [(name, self.problem(case, told)) for (name, _), (case, told) in waiting.items()]
        missing = {name for name, _ in found}
        found += [
            (case.folder.name, self.surplus(case, told))
            for case in cases
            if case.folder.name not in missing
            for told in case.told
        ]
        return [f"{name}: {problem}" for name, problem in sorted(found) if problem]

    def set_up(self, case):
        """Apply what a case finds, and wait until its pods run.

        One case after the other: a device that a pod of one case wants to itself (`mutex`) is not to be taken by
        one of the next, and namespaces that wait together are served in turn.
        """
        self.apply(case, "setup.yaml")
        for name in (each["metadata"]["name"] for each in case.objects("setup.yaml") if each["kind"] == "Pod"):
            self.lab.hami.wait_for(f"{case.namespace}/{name} to run", lambda name=name: self.runs(case, name))


def test_each_mistake_is_told_with_what_figure_and_fix(lab):
    lab.machines(T4, "t4-0")
    lab.machines(A10G, "a10g-0")
    ward = Ward(lab)
    every = cases()
    differences = []
    for phase in ("empty", "busy", "stopped"):
        chosen = [case for case in every if case.phase == phase]
        ward.namespaces(chosen)
        try:
            for case in chosen:
                ward.set_up(case)
            with ward.without({name for case in chosen for name in case.without}):
                for case in chosen:
                    ward.apply(case, "manifest.yaml")
                differences += ward.differences(chosen)
        finally:
            ward.clear(chosen)
    assert not differences, "\n\n" + "\n\n".join(differences)
