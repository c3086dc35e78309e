"""docs/gitops.md against a running installation: what differs from the repository, and what the ignores of the page leave of it.

Used by test_chart_on_cluster.py and test_gitops.py with a `Story`. Ignores are evaluated as Argo CD and Flux do: each path is
removed, by jq's `del`, from both the object of the cluster and that of the repository.
"""

import json
import re
from dataclasses import dataclass

import jq
import yaml

from hami_dra.api import names
from tests.e2e.chart_story import KIND, OURS, ROOT, SYSTEM

AS_ARGO = ("--server-side", "--force-conflicts", "--field-manager=argocd-controller")
TRACKING = {
    "app.kubernetes.io/instance",
    "argocd.argoproj.io/tracking-id",
    "kubectl.kubernetes.io/last-applied-configuration",
    "helm.toolkit.fluxcd.io/name",
    "kustomize.toolkit.fluxcd.io/name",
}
"""Labels and annotations by which tools know what is theirs."""
OF_CONTROLLERS = {"deployment.kubernetes.io/revision", "deprecated.daemonset.template.generation"}
OF_THE_SERVER = {"creationTimestamp", "generation", "managedFields", "resourceVersion", "uid"}


@dataclass(frozen=True)
class Ignore:
    """Which fields of which objects are left alone. `kind` and `name` are patterns; `programs` are jq's."""

    kind: str
    name: str
    programs: tuple[str, ...]

    def apply(self, raw):
        if re.fullmatch(self.kind, raw["kind"]) and re.fullmatch(self.name, raw["metadata"]["name"]):
            for program in self.programs:
                raw = jq.compile(program).input_value(raw).first()
        return raw


def page():
    """The objects and snippets of docs/gitops.md by kind; a snippet without a kind by its first key."""
    blocks = re.findall(r"^```yml\n(.*?)^```$", (ROOT / "docs/gitops.md").read_text(), flags=re.MULTILINE | re.DOTALL)
    found = [raw for block in blocks for raw in yaml.safe_load_all(block)]
    return {raw.get("kind", next(iter(raw))): raw for raw in found}


def ignores_of_argo(application):
    return [
        Ignore(
            re.escape(entry["kind"]),
            re.escape(entry["name"]),
            (
                *(f"del({path})" for path in entry.get("jqPathExpressions", ())),
                *map(_without, entry.get("jsonPointers", ())),
            ),
        )
        for entry in application["spec"]["ignoreDifferences"]
    ]


def ignores_of_flux(release):
    return [
        Ignore(entry["target"]["kind"], entry["target"]["name"], tuple(map(_without, entry["paths"])))
        for entry in release["spec"]["driftDetection"]["ignore"]
    ]


def _without(pointer):
    """The program that removes a JSON pointer: `/webhooks/0/x` is `delpaths([["webhooks",0,"x"]])`."""
    parts = (part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:])
    return f"delpaths([{json.dumps([int(part) if part.isdigit() else part for part in parts])}])"


def repository(render, options):
    """What a repository with the values of hack/kind has, hooks left out."""
    chosen = [*options, "--values", str(KIND / "values.yaml")]
    objects = [raw for raw in render({}, *chosen) if "helm.sh/hook" not in raw["metadata"].get("annotations", {})]
    assert len(objects) > 50
    return objects


def differences(story, objects):
    """What a tool that compares the fields of the repository finds, by client-side and by server-side apply."""
    return {**story.differences(objects), **story.differences(objects, *AS_ARGO)}


def replaced(story, objects):
    """(object of the cluster, what it would be if the repository's replaced it) of all that would differ."""
    found = []
    for raw in objects:
        live = story.api.read(raw)
        metadata = {**raw["metadata"], "resourceVersion": live["metadata"]["resourceVersion"]}
        after = story.api.replace(story.api.path_of(raw), {**raw, "metadata": metadata}, dryRun="All")
        pair = _essence(live), _essence(after)
        if pair[0] != pair[1]:
            found.append(pair)
    return found


def left_by(ignores, pairs):
    """Names of the objects that still differ."""
    found = []
    for pair in pairs:
        live, wanted = pair
        for ignore in ignores:
            live, wanted = ignore.apply(live), ignore.apply(wanted)
        if live != wanted:
            found.append((live["kind"], live["metadata"]["name"]))
    return found


def check_ignores(pairs):
    """What replacing would change is what the page ignores, and of its ignores none is for nothing."""
    documents = page()
    for ignores in (ignores_of_argo(documents["Application"]), ignores_of_flux(documents["HelmRelease"])):
        assert left_by(ignores, pairs) == []
        for ignore in ignores:
            assert left_by([each for each in ignores if each is not ignore], pairs), ignore


def untracked(story, objects):
    """Check that what is there beside the repository carries nothing by which a tool would prune it; return how much it is."""
    ours = {(raw["kind"], raw["metadata"]["name"]) for raw in objects}
    kinds = [f"/apis/{kind}" for kind in OURS]
    kinds += [f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases", "/apis/resource.k8s.io/v1/devicetaintrules"]
    kinds += [f"/api/v1/namespaces/{names.PROBE_NAMESPACE}/pods"]
    count = 0
    for path in kinds:
        answer = story.api.get(path)
        for item in answer["items"]:
            metadata = item["metadata"]
            if (answer["kind"].removesuffix("List"), metadata["name"]) not in ours:
                count += 1
                keys = metadata.get("labels", {}).keys() | metadata.get("annotations", {}).keys()
                assert not keys & TRACKING, (path, metadata["name"])
    return count


def _essence(raw):
    metadata = {key: value for key, value in raw["metadata"].items() if key not in OF_THE_SERVER}
    annotations = {
        key: value
        for key, value in metadata.pop("annotations", {}).items()
        if key not in OF_CONTROLLERS and not key.startswith("meta.helm.sh/")  # the tests install by Helm
    }
    return {**raw, "metadata": {**metadata, "annotations": annotations}, "status": None}
