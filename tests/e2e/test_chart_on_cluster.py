"""charts/hami-dra through Helm: rendered as manifests/ has it, accepted by real API servers, installed, used and taken out again by
the scripts of hack/kind.
"""

import base64
import copy
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from controller.cli.advised_workloads import KINDS as ADVISED
from controller.cli.profile_options import driver_profiles
from controller.settings.webhook import CertificateSettings
from controller.webhook.convert import Options
from controller.webhook.installation import Installation as Choices
from controller.webhook.installation import manifests
from controller.webhook.server.server import Server, WebhookSettings
from controller.webhook.workloads import workload_notices
from hack.controlplane import build
from hack.controlplane.processes import free_port
from hack.installation import QUICK, service_account_token
from hami_dra.api import names
from hami_dra.kube.embedded import MemoryCluster
from hami_dra.kube.manifests import shipped
from hami_dra.vendors.driver_profile_file import parse_driver_profile
from tests.docs.commands_in_docs import parse
from tests.e2e import gitops_story as gitops
from tests.e2e import objects as made
from tests.e2e.chart_story import KIND, ROOT, containers
from tests.support.chart_fixtures import CHART, SELF, template
from tests.unit.webhook.server.test_server import call

SYSTEM = names.SYSTEM_NAMESPACE
AUTHORITY = "hami-dra-webhook-authority"
HELM_LABELS = (
    "app.kubernetes.io/name",
    "app.kubernetes.io/component",
    "app.kubernetes.io/instance",
    "app.kubernetes.io/version",
    "helm.sh/chart",
)
VENDORS = ("nvidia", "metax", "kunlunxin", "neuron", "enflame")
EVERYTHING = {
    "vendors": {
        vendor: {
            "enabled": True,
            "nodeSelector": {"vendor": vendor},
            "runtimeClassName": "special",
            "podRuntimeClassName": "special",
        }
        for vendor in VENDORS
    },
    "driver": {
        "devicePolicy": "binpack",
        "sharing": {"slots": 4, "memoryScaling": 1.5},
        "taintEffects": {"lost": "NoSchedule"},
        "publishBesidePlugin": True,
        "coreLimits": False,
        "driverRoot": "/",
        "cdiHook": "/usr/bin/nvidia-cdi-hook",
        "imexChannels": True,
        "usageCache": "host",
        "priorityFeedback": False,
        "legacyMetrics": ["hami", "hami-2.7"],
        "hamiCore": {"image": "docker.io/projecthami/hami:v2.9.0"},
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
            {"matchExpressions": [{"key": "gpu", "operator": "Exists"}]}]}}},
        "podAnnotations": {"a": "b"},
        "podLabels": {"c": "d"},
    },
    "controller": {
        "replicas": 3,
        "manage": ["gpu.nvidia.com"],
        "manageProfiles": ["gpu.amd.com"],
        "nodePolicy": "fair-share",
        "packingWeights": "theta=0.7,rare=0.1",
        "gangs": {"hold": "1m30s", "of": ["leaderworkerset", "volcano"]},
        "dashboard": {"readings": False},
        "defaultAnnotations": {"hami.io/gpu-topology": "required"},
        "extraArgs": ["--unschedulable-timeout=30s"],
        "extraEnv": [{"name": "A", "value": "b"}],
        "tolerations": [{"operator": "Exists"}],
        "nodeSelector": {"a": "b"},
        "podAnnotations": {"prometheus.io/scrape": "true"},
        "podLabels": {"team": "red"},
        "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
            {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"a": "b"}}}]}},
    },
    "webhook": {"extraEnv": [{"name": "A", "value": "b"}], "podAnnotations": {"a": "b"}, "podLabels": {"c": "d"}},
    "deviceClasses": {"compat": True},
    "image": {"digest": "sha256:" + "0" * 64},
    "imagePullSecrets": [{"name": "pull"}],
    "simulatedFleet": {"enabled": True},
    "log": {"format": "json", "verbosity": 3},
}  # fmt: skip
VOLUME = {
    "extraVolumes": [{"name": "ca", "configMap": {"name": "corporate-ca"}}],
    "extraVolumeMounts": [{"name": "ca", "mountPath": "/etc/ssl/corporate"}],
}
CASES = {
    "as it is": {},
    "everything": EVERYTHING,
    "kind": yaml.safe_load((KIND / "values.yaml").read_text()),
    "native": {"mode": "native", "vendors": {"neuron": {"enabled": True}}},
    "bare": {
        "gate": False,
        "controller": {"replicas": 1},
        "webhook": {"enabled": False},
        "deviceClasses": {"extendedResources": False},
        "uninstall": {"enabled": False},
    },
    "own certificate": {"webhook": {"certificate": {"from": "secret", "secretName": "mine", "caBundle": "bWluZQ=="}}},
    "monitored": {
        "monitoring": {
            "podMonitors": {"enabled": True, "interval": "15s", "labels": {"release": "prometheus"}},
            "rules": {"enabled": True, "labels": {"release": "prometheus"}},
            "dashboard": {"enabled": True, "annotations": {"grafana_folder": "GPUs"}},
        },
        "controller": {"cardMetrics": False, "legacyMetrics": ["hami", "hami-2.7"]},
    },
    "outside": {"webhook": {"url": "https://10.0.0.1:8443/mutate", "replicas": 1}},
    "own authority at run time": {"webhook": SELF},
    "closed": {
        "networkPolicy": {
            "enabled": True,
            "apiServer": ["10.0.0.10/32", "fd00::/64"],
            "monitoring": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}],
            "dashboard": [{"podSelector": {"matchLabels": {"app": "proxy"}}}],
        },
        "webhook": {"refuseOverQuota": True, "clientCAConfigMap": "api-server"},
        "controller": {"dashboard": {"service": {"enabled": True}}},
    },
    "closed to all": {"networkPolicy": {"enabled": True}, "webhook": {"enabled": False}},
    "production": yaml.safe_load((CHART / "values-production.yaml").read_text()),
    "special clusters": {
        "openshift": {"enabled": True},
        "priorityQuota": {"enabled": True},
        "namespace": {"create": True},
        "commonLabels": {"team": "gpu"},
        "commonAnnotations": {"owner": "gpu@example.com"},
        "serviceAccount": {"annotations": {"role": "arn"}, "imagePullSecrets": [{"name": "pull"}]},
        "webhook": {
            "hostNetwork": True,
            "port": 9443,
            "timeoutSeconds": 5,
            "strategy": {"type": "Recreate", "rollingUpdate": None},
            **VOLUME,
        },
        "controller": {"strategy": {"type": "Recreate"}, "terminationGracePeriodSeconds": 60, **VOLUME},
        "driver": {"securityContext": {"readOnlyRootFilesystem": False}, **VOLUME},
        "vendors": {"nvidia": {"enabled": True}},
        "extraObjects": [
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {"name": "{{ .Release.Name }}-own", "namespace": SYSTEM},
            },
            "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: text\n  namespace: {{ .Release.Namespace }}\n",
        ],
        "simulatedFleet": {"enabled": True},
    },
}


# --- rendered ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
def test_lint_finds_nothing(helm, tmp_path, case):
    code, out, err = template(helm, tmp_path, CASES[case], "--strict", command=("lint",))
    assert code == 0, out + err
    assert "[WARNING]" not in out


def test_the_kustomize_base_is_the_chart_with_its_defaults(render):
    kubectl = build.ensure("kubectl") / "kubectl"
    base = ROOT / "kustomize/base"
    built = subprocess.run([kubectl, "kustomize", base], capture_output=True, text=True, check=True).stdout
    objects = {key_of(raw): raw for raw in yaml.safe_load_all(built)}
    chart = {key_of(raw): raw for raw in render({"webhook": {"certificate": {"from": "self"}}}, "--no-hooks")}
    assert objects.pop(f"Namespace {SYSTEM}")["metadata"]["labels"]
    assert objects == chart, "make kustomize writes it again"


def key_of(raw):
    return f"{raw['kind']} {raw['metadata']['name']} {raw['metadata'].get('namespace', '')}".strip()


def essence(raw):
    """Without what Helm and the chart add to every object, and without an authority that is another one each time."""
    raw = copy.deepcopy(raw)
    for label in (names.MANAGED_BY_LABEL, names.PART_OF_LABEL, *HELM_LABELS):
        raw["metadata"].get("labels", {}).pop(label, None)
    for webhook in raw.get("webhooks", ()):
        webhook["clientConfig"].pop("caBundle", None)
    if raw["metadata"]["name"] == AUTHORITY:
        raw["metadata"].pop("annotations")
        raw.pop("data")
    return raw


def shipped_kinds():
    optional = [
        *shipped("manifests/optional/native.yaml"),
        *shipped("manifests/optional/quota-refusals.yaml"),
    ]
    return {(raw["kind"], raw["metadata"]["name"]) for raw in (*shipped("manifests"), *optional)}


def in_(key, *values):
    return {"key": key, "operator": "In", "values": list(values)}


@pytest.mark.parametrize(
    ("values", "choices"),
    [
        ({"webhook": {"optIn": False, **SELF}}, Choices()),
        ({"webhook": SELF}, Choices(namespace_selector="hami.io/webhook=enabled")),
        ({"webhook": {"optIn": False}}, Choices(own_certificate=False)),
        ({"mode": "native", "webhook": {"optIn": False, **SELF}}, Choices(mode="native")),
        ({"gate": False, "webhook": {"optIn": False, **SELF}}, Choices(gate=False)),
        ({"webhook": {"enabled": False}}, Choices(webhook=False)),
        (
            {
                "schedulerNames": ["default-scheduler", "mine"],
                "webhook": {"optIn": False, "failurePolicy": "Ignore", **SELF},
            },
            Choices(schedulers=("default-scheduler", "mine"), failure_policy="Ignore"),
        ),
        (
            {
                "webhook": {
                    "namespaceSelector": [in_("tier", "a", "b")],
                    "podSelector": [{"key": "old", "operator": "DoesNotExist"}],
                    **SELF,
                }
            },
            Choices(namespace_selector="hami.io/webhook=enabled,tier in (a,b)", pod_selector="!old"),
        ),
        ({"webhook": {"optIn": False, "url": "https://h:1/mutate"}}, Choices(webhook_url="https://h:1/mutate")),
        (
            {
                "webhook": {"optIn": False, "refuseOverQuota": True, **SELF},
                "controller": {"probeImage": "registry.example.com/pause:1"},
            },
            Choices(refuse_over_quota=True, probe_image="registry.example.com/pause:1"),
        ),
    ],
    ids=lambda value: json.dumps(value)[:60] if isinstance(value, dict) else "",
)
def test_what_ships_is_rendered_as_an_installation_without_helm_has_it(render, values, choices):
    wanted = [essence(raw) for raw in manifests(choices) if raw["metadata"]["name"] != SYSTEM]
    known = shipped_kinds()
    found = [essence(raw) for raw in render(values) if (raw["kind"], raw["metadata"]["name"]) in known]
    key = lambda raw: (raw["kind"], raw["metadata"]["name"], raw["metadata"].get("namespace", ""))  # noqa: E731
    assert sorted(found, key=key) == sorted(wanted, key=key)


def test_what_is_monitored(render):
    """The Prometheus Operator's kinds are on no cluster of these tests."""
    objects = render(CASES["monitored"])
    (rules,) = (raw for raw in objects if raw["kind"] == "PrometheusRule")
    assert rules["spec"] == yaml.safe_load((ROOT / "monitoring/alerts.yaml").read_text())
    (dashboard,) = (raw for raw in objects if raw["metadata"]["name"] == "hami-dra-dashboard")
    assert json.loads(dashboard["data"]["hami-dra.json"]) == json.loads(
        (ROOT / "monitoring/dashboard.json").read_text()
    )
    assert dashboard["metadata"]["labels"]["grafana_dashboard"] == "1"
    monitors = {raw["metadata"]["name"]: raw["spec"] for raw in objects if raw["kind"] == "PodMonitor"}
    assert set(monitors) == {"hami-dra-controller", "hami-dra-driver", "hami-dra-webhook"}
    everything = [*objects, *render({"vendors": {"nvidia": {"enabled": True}}})]
    for name, spec in monitors.items():
        wanted = spec["selector"]["matchLabels"].items()
        templates = [raw["spec"]["template"] for raw in everything if raw["kind"] in {"Deployment", "DaemonSet"}]
        found = [each for each in templates if wanted <= each["metadata"]["labels"].items()]
        ports = {port["name"] for each in found for one in each["spec"]["containers"] for port in one.get("ports", ())}
        assert spec["podMetricsEndpoints"][0]["port"] in ports, name
    assert not [raw for raw in render({}) if raw["kind"] in {"PodMonitor", "PrometheusRule"}]


def test_classes_are_those_that_ship(render):
    found = {raw["metadata"]["name"]: raw["spec"] for raw in render({}) if raw["kind"] == "DeviceClass"}
    compat = {path.stem for path in (ROOT / "deviceclasses/compat").glob("*.yaml")}
    wanted = {raw["metadata"]["name"]: raw["spec"] for raw in shipped("deviceclasses")}
    assert found == {name: spec for name, spec in wanted.items() if name not in compat}
    without = {
        "vendors": {"neuron": {"deviceClasses": False}},
        "deviceClasses": {"extendedResources": False, "compat": True},
    }
    fewer = {raw["metadata"]["name"]: raw["spec"] for raw in render(without) if raw["kind"] == "DeviceClass"}
    assert set(fewer) == {name for name in wanted if not name.startswith("neuron")}
    assert not any("extendedResourceName" in spec for spec in fewer.values())


def test_profiles_are_mounted_and_read(render, tmp_path):
    """Shipped ones by name, others as they stand; the controller's options name the files of the ConfigMap."""
    own = {"apiVersion": "hami.io/v1alpha1", "kind": "DriverProfile", "driver": "gpu.example.com", "numberInName": 2}
    objects = render({"controller": {"manageProfiles": ["gpu.amd.com", own]}})
    (config,) = (raw for raw in objects if raw["kind"] == "ConfigMap" and "profiles" in raw["metadata"]["name"])
    for file, text in config["data"].items():
        (tmp_path / file).write_text(text)
    found = driver_profiles([tmp_path / file for file in config["data"]])
    assert dict(found.given) == {
        "gpu.example.com": parse_driver_profile(own),
        **driver_profiles([ROOT / "driverprofiles/gpu.amd.com.yaml"]).given,
    }
    (pod, container) = next(
        (pod, each) for raw, pod, each in containers(objects) if raw["metadata"]["name"] == names.CONTROLLER
    )
    volume = next(each for each in pod["volumes"] if each["name"] == "profiles")
    mount = next(each for each in container["volumeMounts"] if each["name"] == "profiles")
    assert volume["configMap"]["name"] == config["metadata"]["name"]
    for file in config["data"]:
        assert f"--manage-profile={mount['mountPath']}/{file}" in container["args"]
        assert f"--manage={file.removesuffix('.yaml')}" in container["args"]
    assert not [raw for raw in render({}) if raw["kind"] == "ConfigMap" and "profiles" in raw["metadata"]["name"]]


@pytest.mark.parametrize("case", ["everything", "kind"])
def test_doctor_may_list_workloads_and_has_nothing_to_say_of_the_charts_own(render, case):
    objects = render(CASES[case])
    workloads = [raw for raw, _, _ in containers(objects)]
    assert {"Deployment", "DaemonSet", "Job"} <= {raw["kind"] for raw in workloads}
    assert [said for raw in workloads for said in workload_notices(raw, SYSTEM, Options())] == []
    (role,) = (raw for raw in objects if raw["kind"] == "ClusterRole" and raw["metadata"]["name"] == "hami-dra-doctor")
    listed = {name for rule in role["rules"] if "list" in rule["verbs"] for name in rule["resources"]}
    assert {kind.plural for kind in ADVISED} <= listed


def init_containers(objects):
    """Name of the DaemonSet → (its pod, its init containers by name)."""
    pods = {raw["metadata"]["name"]: raw["spec"]["template"]["spec"] for raw in objects if raw["kind"] == "DaemonSet"}
    return {name: (pod, {each["name"]: each for each in pod.get("initContainers", ())}) for name, pod in pods.items()}


def test_hami_core_is_installed_where_the_operator_names_it(render, tmp_path):
    """From an image that sees nothing of the node, by an init container of ours that parses its options."""
    nvidia = {
        "enabled": True,
        "hamiCore": {"image": "projecthami/hami:v2.9.0"},
        "extraArgs": ["--library-version=v2.9.0", "--library-folder=/opt", "--health-every=30s"],
        "hostPaths": [{"path": "/opt/vgpu", "readOnly": False, "type": "DirectoryOrCreate"}],
    }
    found = init_containers(render({"vendors": {"nvidia": nvidia, "metax": {"enabled": True}}}))
    pod, made = found["hami-dra-driver-nvidia"]
    assert list(made) == ["hami-core", "install-hami-core"]
    copy, install = made["hami-core"], made["install-hami-core"]
    assert (copy["image"], copy["command"]) == (
        "projecthami/hami:v2.9.0",
        ["cp", "-r", "/k8s-vgpu/lib/nvidia/.", "/staging"],
    )
    assert [each["name"] for each in copy["volumeMounts"]] == ["hami-core"]
    assert copy["securityContext"]["runAsNonRoot"]
    assert install["image"] == pod["containers"][0]["image"]
    assert parse(install["args"]) == {"source": Path("/staging"), "vendor": "nvidia"}
    assert install["args"][2:] == ["--library-version=v2.9.0", "--library-folder=/opt"]
    assert not copy["securityContext"].get("privileged")
    mounts = {each["mountPath"]: each["readOnly"] for each in install["volumeMounts"]}
    assert mounts == {"/staging": True, "/opt/vgpu": False}
    volumes = {each["name"]: each for each in pod["volumes"]}
    assert {each["name"] for one in made.values() for each in one["volumeMounts"]} <= volumes.keys()
    assert "emptyDir" in volumes["hami-core"]
    assert found["hami-dra-driver-metax"][1] == {}

    nvidia["hamiCore"] = {"nodeFolder": "/srv/hami-core"}
    pod, made = init_containers(render({"vendors": {"nvidia": nvidia}}))["hami-dra-driver-nvidia"]
    assert list(made) == ["install-hami-core"]
    (volume,) = (each for each in pod["volumes"] if each["name"] == "hami-core")
    assert volume["hostPath"] == {"path": "/srv/hami-core", "type": "Directory"}


def test_by_default_and_on_simulated_machines_nothing_is_installed(render):
    simulated = {"enabled": True, "hamiCore": {"image": "a"}, "simulated": [{"machine": "dgx-h100"}]}
    for nvidia in ({"enabled": True}, simulated):
        ((pod, made),) = init_containers(render({"vendors": {"nvidia": nvidia}})).values()
        assert made == {}
        assert "hami-core" not in {each["name"] for each in pod["volumes"]}


def test_everything_is_known_to_be_ours(render):
    """By the label that `hami-dra uninstall` goes by; Helm writes its own name into managed-by."""
    for raw in render(EVERYTHING):
        assert raw["metadata"]["labels"][names.PART_OF_LABEL] == names.MANAGED_BY, raw["metadata"]["name"]


def test_deployments_select_by_what_never_changes(render):
    """A selector cannot be changed, so that it must not name what an upgrade does: neither version nor chart nor release."""
    found = {
        raw["metadata"]["name"]: (raw["spec"]["selector"]["matchLabels"], raw["spec"]["template"]["metadata"]["labels"])
        for raw in render(CASES["special clusters"])
        if raw["kind"] in {"Deployment", "DaemonSet"}
    }
    name, component = "app.kubernetes.io/name", "app.kubernetes.io/component"
    assert {key: selector for key, (selector, _) in found.items()} == {
        "hami-dra-controller": {name: "hami-dra", component: "controller"},
        "hami-dra-webhook": {name: "hami-dra", component: "webhook"},
        "hami-dra-fleet": {name: "hami-dra", component: "fleet"},
        "hami-dra-driver-nvidia": {
            name: "hami-dra",
            component: "driver",
            "hami.io/daemonset": "hami-dra-driver-nvidia",
        },
    }
    for selector, labels in found.values():
        assert selector.items() <= labels.items()
        assert labels["team"] == "gpu"


def test_what_special_clusters_want(render):
    objects = render(CASES["special clusters"])
    named = {(raw["kind"], raw["metadata"]["name"]): raw for raw in objects}
    assert all(
        raw["metadata"]["labels"]["team"] == "gpu" and raw["metadata"]["annotations"]["owner"] == "gpu@example.com"
        for (_, name), raw in named.items()
        if name not in {f"{names.MANAGED_BY}-own", "text"}
    )
    accounts = [raw for raw in objects if raw["kind"] == "ServiceAccount"]
    assert len(accounts) == 6
    assert all(raw["metadata"]["annotations"]["role"] == "arn" and raw["imagePullSecrets"] for raw in accounts)
    # GKE, Pod Security
    assert named["ResourceQuota", "hami-dra-system-priorities"]["spec"]["hard"] == {"pods": "1G"}
    assert named["Namespace", SYSTEM]["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "privileged"
    # EKS with an overlay
    webhook = named["Deployment", names.WEBHOOK]["spec"]["template"]["spec"]
    assert (webhook["hostNetwork"], webhook["dnsPolicy"]) == (True, "ClusterFirstWithHostNet")
    assert "--port=9443" in webhook["containers"][0]["args"]
    assert named["Service", names.WEBHOOK]["spec"]["ports"][0]["targetPort"] == 9443
    hooks = named["MutatingWebhookConfiguration", names.WEBHOOK]["webhooks"]
    assert {hook["timeoutSeconds"] for hook in hooks} == {5}
    # OpenShift: no user of ours, and drivers may be privileged
    for raw, pod, container in containers(objects):
        if raw["kind"] != "DaemonSet":
            assert not {"runAsUser", "runAsGroup", "fsGroup"} & pod["securityContext"].keys(), raw["metadata"]["name"]
        else:
            assert container["securityContext"]["readOnlyRootFilesystem"] is False
        if raw["metadata"]["name"] in {names.CONTROLLER, names.WEBHOOK, "hami-dra-driver-nvidia"}:
            assert {"name": "ca", "mountPath": "/etc/ssl/corporate"} in container["volumeMounts"]
            assert "ca" in {volume["name"] for volume in pod["volumes"]}
    assert named["RoleBinding", "hami-dra-driver-privileged"]["roleRef"]["name"] == "system:openshift:scc:privileged"
    assert {("ConfigMap", f"{names.MANAGED_BY}-own"), ("ConfigMap", "text")} <= named.keys()


def test_notes_say_what_cannot_start(helm, tmp_path):
    """D15: with default values nothing can be pulled."""

    chart = tmp_path / "chart"
    shutil.copytree(CHART, chart)
    notes = chart / "templates/NOTES.txt"
    text = f'{{{{ define "notes" }}}}{notes.read_text()}{{{{ end }}}}\ntext: {{{{ include "notes" . | quote }}}}\n'
    notes.unlink()
    (chart / "templates/notes.yaml").write_text(text)

    def told_with(values):
        (tmp_path / "values.yaml").write_text(json.dumps(values))
        where = ("--namespace", SYSTEM, "--kube-version", build.DEFAULT_VERSION, "-f", tmp_path / "values.yaml")
        code, out, err = helm("template", names.MANAGED_BY, chart, *where, "--show-only", "templates/notes.yaml")
        assert code == 0, err
        return yaml.safe_load(out)["text"]

    assert "NO IMAGE YET: no image hami-dra:0.1.0 is published" in told_with({})
    assert "pod-security" not in told_with({})
    told = told_with({"image": {"repository": "registry.example.com/x"}, "vendors": {"nvidia": {"enabled": True}}})
    assert "NO IMAGE YET" not in told
    assert f"kubectl label namespace {SYSTEM} pod-security.kubernetes.io/enforce=privileged" in told
    assert "helm test hami-dra" in told


def test_in_another_namespace_nothing_names_the_usual_one(helm, tmp_path):
    code, out, err = template(helm, tmp_path, EVERYTHING, "--namespace", "gpus")
    assert code == 0, err
    assert SYSTEM not in out
    assert "system:serviceaccount:gpus:hami-dra-driver" in out


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"mode": "both"}, "mode"),
        ({"controller": {"manageProfiles": ["gpu.example.com"]}}, "no profile of gpu.example.com ships with the chart"),
        ({"controller": {"manageProfiles": ["gpu.amd.com", "gpu.amd.com"]}}, "gpu.amd.com is there twice"),
        ({"vendors": {"nvidia": {"enable": True}}}, "enable"),
        ({"webhook": {"certificate": {"from": "secret"}}}, "webhook.certificate.secretName"),
        ({"image": {"digest": "abc"}}, "digest"),
        (
            {"vendors": {"nvidia": {"enabled": True, "hamiCore": {"image": "hami:1", "nodeFolder": "/opt/x"}}}},
            "an image or a nodeFolder, not both",
        ),
        ({"driver": {"hamiCore": {"nodeFolder": "opt/x"}}}, "nodeFolder"),
        ({"controller": {"gangs": {"of": ["jobset"]}}}, "gangs"),
        ({"controller": {"gangs": {"hold": "2 minutes"}}}, "gangs"),
        ({"networkPolicy": {"enabled": True}}, "networkPolicy.apiServer"),
        ({"networkPolicy": {"enabled": True, "apiServer": ["10.0.0.1"]}}, "apiServer"),
    ],
    ids=json.dumps,
)
def test_wrong_values_are_refused_by_name(helm, tmp_path, values, said):
    code, _, err = template(helm, tmp_path, values)
    assert code != 0
    assert said in err


@pytest.mark.parametrize("case", CASES)
def test_every_program_is_called_with_options_that_it_has(render, case):
    for raw, _, container in containers(render(CASES[case])):
        given = [re.sub(r"\$\([A-Z_]+\)", "gpu-node-1", argument) for argument in container["args"]]  # as kubelet does
        assert parse(given), raw["metadata"]["name"]


def test_values_of_gangs_are_options_of_the_controller(render):
    """As it is, with the defaults of the program."""
    found = [
        [argument for raw, _, each in containers(render(values)) if raw["metadata"]["name"] == names.CONTROLLER
         for argument in each["args"] if argument.startswith("--gang")]
        for values in ({}, EVERYTHING)
    ]  # fmt: skip
    assert found == [["--gang-hold=2m"], ["--gang-hold=1m30s", "--gangs-of=leaderworkerset", "--gangs-of=volcano"]]


def test_only_drivers_are_root_and_only_those_of_real_cards_are_privileged(render):
    simulated = {"vendors": {"nvidia": {"enabled": True, "simulated": [{"machine": "dgx-h100"}]}}}
    for raw, pod, container in containers([*render(EVERYTHING), *render(simulated)]):
        context = container["securityContext"]
        assert context["readOnlyRootFilesystem"] is True
        if raw["kind"] != "DaemonSet":
            assert pod["securityContext"]["runAsNonRoot"] is True
            assert context["capabilities"] == {"drop": ["ALL"]}
            assert not any("hostPath" in volume for volume in pod["volumes"])
        else:
            assert context.get("privileged", False) is ("dgx" not in raw["metadata"]["name"])


def test_a_vendor_has_its_own_values_over_those_of_all(render):
    values = {
        "driver": {"kubeletRoot": "/data/kubelet", "tolerations": [{"operator": "Exists"}]},
        "vendors": {
            "nvidia": {"enabled": True, "cdiDir": "/etc/cdi", "nodeSelector": {"gpu": "nvidia"}},
            "metax": {"enabled": True, "tolerations": []},
        },
    }
    sets = {
        raw["metadata"]["name"]: raw["spec"]["template"]["spec"] for raw in render(values) if raw["kind"] == "DaemonSet"
    }
    assert set(sets) == {"hami-dra-driver-nvidia", "hami-dra-driver-metax"}
    nvidia, metax = sets["hami-dra-driver-nvidia"], sets["hami-dra-driver-metax"]
    assert nvidia["nodeSelector"] == {"gpu": "nvidia"}
    assert [each.get("key") for each in nvidia["tolerations"]] == [None, "nvidia.com/gpu"], "lists add up"
    assert metax["tolerations"] == [{"operator": "Exists"}]
    for pod, cdi in ((nvidia, "/etc/cdi"), (metax, "/var/run/cdi")):
        (container,) = pod["containers"]
        assert {"--root=/data/kubelet", f"--cdi-dir={cdi}"} <= set(container["args"])
        mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        hosts = {volume["name"]: volume["hostPath"]["path"] for volume in pod["volumes"] if "hostPath" in volume}
        assert mounts.items() >= hosts.items()
        assert hosts["registry"] == "/data/kubelet/plugins_registry"


def nvidia_driver(render, **values):
    """Environment, arguments, (path on the node, path in the container) of what is mounted."""
    (pod,) = (
        raw["spec"]["template"]["spec"]
        for raw in render({"vendors": {"nvidia": {"enabled": True, **values}}})
        if raw["metadata"]["name"].startswith("hami-dra-driver-nvidia")
    )
    (container,) = pod["containers"]
    hosts = {volume["name"]: volume["hostPath"]["path"] for volume in pod["volumes"] if "hostPath" in volume}
    mounts = {(hosts[each["name"]], each["mountPath"]) for each in container["volumeMounts"] if each["name"] in hosts}
    env = {each["name"]: each["value"] for each in container["env"] if "value" in each}
    return {name: env[name] for name in env if name.startswith("NVIDIA_")}, container["args"], mounts


def test_nvidias_runtime_shows_the_driver_mig_or_is_left_out(render):
    """B6: in legacy mode it hides /proc/driver/nvidia/capabilities from containers that do not ask for it."""
    mig = {"NVIDIA_MIG_CONFIG_DEVICES": "all", "NVIDIA_MIG_MONITOR_DEVICES": "all"}
    basic = {"NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_DRIVER_CAPABILITIES": "compute,utility"}
    env, arguments, _ = nvidia_driver(render)
    assert env == basic | mig
    assert not [each for each in arguments if "driver-root" in each or "runtime-class" in each]
    assert nvidia_driver(render, privileged=False)[0] == basic  # the runtime refuses MIG to others
    assert nvidia_driver(render, simulated=[{"machine": "dgx-h100"}])[0] == {}
    own = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "0"}]
    assert nvidia_driver(render, extraEnv=own)[0]["NVIDIA_VISIBLE_DEVICES"] == "0"
    assert "--library-runtime-class=nvidia" in nvidia_driver(render, runtimeClassName="nvidia")[1]

    env, arguments, mounts = nvidia_driver(render, driverRoot="/run/nvidia/driver", runtimeClassName="nvidia")
    assert env == {"NVIDIA_VISIBLE_DEVICES": "void"}
    assert ("/run/nvidia/driver", "/driver-root") in mounts
    assert {"--driver-root=/run/nvidia/driver", "--driver-root-mount=/driver-root"} <= set(arguments)
    assert not [each for each in arguments if "runtime-class" in each]


def test_the_webhook_sets_the_runtime_class_that_is_named_for_a_vendor_and_by_default_none(render):
    def classes(values):
        (arguments,) = (
            container["args"] for raw, _, container in containers(render(values)) if container["name"] == "webhook"
        )
        return [each for each in arguments if each.startswith("--runtime-class")]

    assert classes({}) == []
    chosen = {"vendors": {"nvidia": {"podRuntimeClassName": "nvidia"}, "kunlunxin": {"podRuntimeClassName": "xpu"}}}
    assert classes(chosen) == ["--runtime-class=kunlunxin=xpu", "--runtime-class=nvidia=nvidia"]


def test_certificates_by_cert_manager(render):
    objects = render({"webhook": {"certificate": {"from": "cert-manager"}}})
    (certificate,) = [raw for raw in objects if raw["kind"] == "Certificate"]
    (configuration,) = [raw for raw in objects if raw["kind"] == "MutatingWebhookConfiguration"]
    reference = configuration["metadata"]["annotations"]["cert-manager.io/inject-ca-from"]
    assert reference == f"{SYSTEM}/{certificate['metadata']['name']}"
    assert f"hami-dra-webhook.{SYSTEM}.svc" in certificate["spec"]["dnsNames"]
    (pod,) = [pod for raw, pod, _ in containers(objects) if raw["metadata"]["name"] == names.WEBHOOK]
    (volume,) = [volume for volume in pod["volumes"] if volume["name"] == "tls"]
    assert volume["secret"]["secretName"] == certificate["spec"]["secretName"]
    assert {raw["kind"] for raw in objects if "cert-manager" in raw["apiVersion"]} == {"Issuer", "Certificate"}
    other = render(
        {
            "webhook": {
                "certificate": {"from": "cert-manager", "issuerRef": {"name": "corporate", "kind": "ClusterIssuer"}}
            }
        }
    )
    assert [raw["kind"] for raw in other if "cert-manager" in raw["apiVersion"]] == ["Certificate"]


def test_the_account_of_uninstall_is_there_only_for_the_hook(render):
    """M6: it may take away the policies that protect the cluster."""
    ours = {raw["kind"] for raw in shipped("manifests/optional/uninstall.yaml")} | {"Job"}
    objects = [raw for raw in render({}) if raw["metadata"]["name"] == names.UNINSTALL]
    assert {raw["kind"] for raw in objects} == ours
    weights = {}
    for raw in objects:
        annotations = raw["metadata"]["annotations"]
        assert annotations["helm.sh/hook"] == "pre-delete"
        assert "hook-succeeded" in annotations["helm.sh/hook-delete-policy"]
        weights[raw["kind"]] = int(annotations.get("helm.sh/hook-weight", 0))
    assert all(weight < weights["Job"] for kind, weight in weights.items() if kind != "Job")
    assert not [raw for raw in render({"uninstall": {"enabled": False}}) if raw["metadata"]["name"] == names.UNINSTALL]


def test_a_webhook_with_an_authority_of_helms_has_no_right(render):
    """C2: nothing to create, to read or to patch, neither Secrets nor its configuration."""
    bound = [
        subject["name"]
        for raw in render({})
        if raw["kind"] in ("ClusterRoleBinding", "RoleBinding")
        for subject in raw["subjects"]
    ]
    assert names.WEBHOOK not in bound
    assert names.CONTROLLER in bound


def test_network_policies_name_the_pods_and_ports_that_there_are(render):
    objects = [*render(CASES["closed"]), *render({"vendors": {"nvidia": {"enabled": True}}})]
    policies = {raw["metadata"]["name"]: raw["spec"] for raw in objects if raw["kind"] == "NetworkPolicy"}
    assert set(policies) == {"hami-dra-webhook", "hami-dra-controller", "hami-dra-driver"}
    for name, spec in policies.items():
        wanted = spec["podSelector"]["matchLabels"].items()
        templates = [raw["spec"]["template"] for raw in objects if raw["kind"] in {"Deployment", "DaemonSet"}]
        found = [each for each in templates if wanted <= each["metadata"]["labels"].items()]
        ports = {port["containerPort"] for each in found for one in each["spec"]["containers"] for port in one["ports"]}
        assert spec["policyTypes"] == ["Ingress"]
        assert {port["port"] for rule in spec["ingress"] for port in rule["ports"]} <= ports, name
        assert all(rule["from"] for rule in spec["ingress"]), name  # a rule without peers lets in everybody
    closed = {
        raw["metadata"]["name"]: raw["spec"] for raw in render(CASES["closed to all"]) if raw["kind"] == "NetworkPolicy"
    }
    assert closed["hami-dra-controller"]["ingress"] is None
    assert "hami-dra-webhook" not in closed
    assert not [raw for raw in render({}) if raw["kind"] == "NetworkPolicy"]


def test_packed_it_is_the_same(helm, render, tmp_path):
    """A package holds what the links of the checkout lead to."""
    code, out, err = helm("package", CHART, "--destination", tmp_path)
    assert code == 0, out + err
    (package,) = tmp_path.glob("*.tgz")
    code, out, err = helm("template", names.MANAGED_BY, package, "--namespace", SYSTEM, "--kube-version", "1.37.1")
    assert code == 0, err
    assert [essence(raw) for raw in yaml.safe_load_all(out) if raw] == [essence(raw) for raw in render({})]


# --- on a real API server ----------------------------------------------------------------------------------------------------


@pytest.mark.on_1_36
@pytest.mark.parametrize("case", CASES)
def test_the_api_server_takes_every_object(control_plane, render, case):
    api = control_plane.api
    # a dry run finds no namespace that is not there
    for name in (SYSTEM, names.PROBE_NAMESPACE):
        api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    objects = render(CASES[case])
    assert len(objects) > 20
    for raw in objects:
        if raw["apiVersion"] in {"monitoring.coreos.com/v1", "cert-manager.io/v1"}:
            continue  # kinds of operators that are not on this cluster
        if raw["kind"] == "Pod":
            raw["spec"]["serviceAccountName"] = "default"  # its own is not there in a dry run
        if raw["kind"] != "Namespace":
            api.create(api.path_of(raw, collection=True), raw, dryRun="All", fieldValidation="Strict")


@pytest.mark.on_1_36
async def test_the_authority_of_helm_is_kept_and_signs_what_the_api_server_trusts(make_control_plane, helm, tmp_path):
    """Installed, upgraded, and served by a webhook that knows nothing but the authority."""
    plane = make_control_plane()
    api = plane.api
    path = f"/api/v1/namespaces/{SYSTEM}/secrets/{AUTHORITY}"
    configuration = f"/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/{names.WEBHOOK}"
    where = ("--namespace", SYSTEM, "--kubeconfig", str(plane.admin_kubeconfig))
    seen = []
    for replicas in (1, 2):
        code, out, err = helm(
            *("upgrade", "--install", names.MANAGED_BY, CHART, *where, "--create-namespace"),
            *("--set", f"webhook.replicas={replicas}"),
        )
        assert code == 0, out + err
        bundles = {hook["clientConfig"]["caBundle"] for hook in api.get(configuration)["webhooks"]}
        seen.append((api.get(path)["data"], bundles))
    assert seen[0] == seen[1]
    # programs of 0.1.0 are there, whose selectors were others: said before anything changes
    old = made.deployment("hami-dra-old", 0, made.pod("old", labels={"app.kubernetes.io/part-of": names.MANAGED_BY}))
    old["metadata"] |= {"namespace": SYSTEM, "labels": {"app.kubernetes.io/part-of": names.MANAGED_BY}}
    api.add(old)
    code, _, err = helm("upgrade", names.MANAGED_BY, CHART, *where)
    assert code != 0
    assert f"kubectl -n {SYSTEM} delete deployments,daemonsets -l app.kubernetes.io/part-of=hami-dra" in err
    api.remove(old)
    # eight years later: a new one, and the old one is trusted beside it
    api.patch(path, {"metadata": {"annotations": {"hami.io/authority-made": "1"}}}, fieldManager="helm")
    code, out, err = helm("upgrade", names.MANAGED_BY, CHART, *where, "--force-conflicts")
    assert code == 0, out + err
    (old,), (new,) = seen[0][1], {hook["clientConfig"]["caBundle"] for hook in api.get(configuration)["webhooks"]}
    stored = {key: base64.b64decode(value) for key, value in api.get(path)["data"].items()}
    assert base64.b64decode(new) == stored["ca.crt"] + base64.b64decode(old)
    for key, value in stored.items():
        (tmp_path / key).write_bytes(value)
    certificates = CertificateSettings(hosts=("127.0.0.1",), authority_folder=tmp_path)
    settings = WebhookSettings(host="127.0.0.1", port=0, certificates=certificates)
    async with Server(MemoryCluster(), settings) as server:
        await server.ready()
        assert await call(server, base64.b64decode(new).decode(), "/readyz") == (200, "ok")


def check_that_gitops_finds_what_its_page_names(story, render, options):
    """docs/gitops.md: nothing differs of what the repository has, and what is there besides is tracked by nobody."""
    objects = gitops.repository(render, [*options, "--set", "controller.replicas=1"])
    assert gitops.differences(story, objects) == {}
    gitops.check_ignores(gitops.replaced(story, objects))
    assert story.hami.fence_rules()
    assert gitops.untracked(story, objects) > 10
    # a difference would be seen
    (controller,) = (
        raw for raw in objects if raw["kind"] == "Deployment" and raw["metadata"]["name"] == names.CONTROLLER
    )
    controller["spec"]["replicas"] = 2
    (found,) = story.differences(objects).items()
    assert found[0].startswith("apps.v1.Deployment.")
    assert "+  replicas: 2" in found[1]


def check_that_helm_test_passes(story, render):
    """What the pod of `helm test` runs, with the rights of its account."""
    hooks = [raw for raw in render({}) if raw["metadata"].get("annotations", {}).get("helm.sh/hook") == "test"]
    (pod,) = (raw for raw in hooks if raw["kind"] == "Pod")
    for raw in hooks:
        if raw is not pod:
            story.api.apply(raw)
    token = service_account_token(story.api, pod["spec"]["serviceAccountName"])
    kubeconfig = story.plane.kubeconfig_for(token, "doctor")
    (container,) = pod["spec"]["containers"]
    command = [sys.executable, "-m", "controller.cli.main", *container["args"], f"--kubeconfig={kubeconfig}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    for raw in hooks:
        if raw is not pod:
            story.api.remove(raw)


def test_an_authority_of_helms_is_another_one_in_each_rendering(render):
    """docs/gitops.md names these three, and why another certificate is to be chosen."""
    first, second = ({(raw["kind"], raw["metadata"]["name"]): raw for raw in render({})} for _ in range(2))
    assert {name for name, raw in first.items() if raw != second[name]} == {
        ("Secret", AUTHORITY),
        ("MutatingWebhookConfiguration", names.WEBHOOK),
        ("ValidatingWebhookConfiguration", names.WEBHOOK),
    }
    own = {"webhook": {"certificate": {"from": "self"}}}
    assert render(own) == render(own)
    text = (ROOT / "docs/gitops.md").read_text()
    assert AUTHORITY in text


@pytest.mark.e2e
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "devices", ["of a simulated fleet", pytest.param("of drivers on the nodes", marks=pytest.mark.on_1_36)]
)
def test_installed_used_upgraded_and_taken_out_by_the_scripts_for_kind(story, devices, render):
    """The values of hack/kind with drivers; those of a fleet where no driver runs."""
    options = ["--set", f"webhook.url=https://127.0.0.1:{story.port}/mutate"]
    with_fleet = "fleet" in devices
    if with_fleet:
        options += ["--set", "simulatedFleet.enabled=true"]
    install = story.begin("install.sh", *options)
    story.start(names.CONTROLLER, *QUICK, port=free_port())
    story.start(names.WEBHOOK, "--certificate-host=127.0.0.1", port=story.port, tls=True)
    if with_fleet:
        story.start_fleet()
    else:
        assert sorted(story.start_drivers()) == ["worker-0", "worker-1"]
    assert "daemon set" in story.finish("install.sh", install)
    story.hami.wait_for("a controller that decides", story.hami.is_deciding)

    assert "all four patterns are as they should be" in story.run("patterns.sh")

    # installed once more with another value, the webhook still trusts its own authority
    story.run("install.sh", *options, "--set", "controller.replicas=1")
    configuration = story.api.get(
        "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/hami-dra-webhook"
    )
    assert all(webhook["clientConfig"].get("caBundle") for webhook in configuration["webhooks"])
    assert story.hami.is_converting()
    if with_fleet:
        check_that_gitops_finds_what_its_page_names(story, render, options)
        check_that_helm_test_passes(story, render)

    down, said = story.take_down()
    assert "done: running pods keep their devices" in said
    story.finish("down.sh", down)
    assert story.left_of_us() == []
