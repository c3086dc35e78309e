"""charts/hami-dra through Helm: rendered as manifests/ has it, accepted by real API servers, installed, used and taken out again by
the scripts of hack/kind.
"""

import copy
import json
import os
import subprocess

import pytest
import yaml

from controller.bridge.installation import Installation as Choices
from controller.bridge.installation import manifests
from hack.controlplane import build
from hack.controlplane.processes import free_port
from hack.helm import helm as helm_build
from hack.installation import QUICK
from hami_dra.api import names
from hami_dra.cluster.manifests import shipped
from tests.docs.commands_in_docs import parse
from tests.e2e.chart_story import KIND, ROOT, Story, containers, helm_home

CHART = ROOT / "charts/hami-dra"
SYSTEM = names.SYSTEM_NAMESPACE
VENDORS = ("nvidia", "metax", "kunlunxin", "neuron", "enflame")
EVERYTHING = {
    "vendors": {
        vendor: {"enabled": True, "nodeSelector": {"vendor": vendor}, "runtimeClassName": "special"} for vendor in VENDORS
    },
    "driver": {
        "devicePolicy": "binpack",
        "sharing": {"slots": 4, "memoryScaling": 1.5},
        "taintEffects": {"lost": "NoSchedule"},
        "publishBesidePlugin": True,
        "coreLimits": False,
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
            {"matchExpressions": [{"key": "gpu", "operator": "Exists"}]}]}}},
        "podAnnotations": {"a": "b"},
        "podLabels": {"c": "d"},
    },
    "controller": {
        "replicas": 3,
        "manage": ["gpu.nvidia.com"],
        "nodePolicy": "fair-share",
        "packingWeights": "theta=0.7,rare=0.1",
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
}


@pytest.fixture(scope="module")
def helm(tmp_path_factory):
    """`helm(*arguments)` → (exit code, stdout, stderr), in a home of its own."""
    try:
        program = helm_build.ensure()
    except build.BuildError as error:
        message = f"NO HELM, NOT TESTED: {error}"
        pytest.fail(message) if os.environ.get("REQUIRE_ALL") == "1" else pytest.skip(message)
    home = tmp_path_factory.mktemp("helm")

    def run(*arguments):
        command = [str(part) for part in (program, *arguments)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=helm_home(home), cwd=ROOT)
        return done.returncode, done.stdout, done.stderr

    run.program, run.home = program, home
    return run


@pytest.fixture
def render(helm, tmp_path):
    """`render(values)` → the objects."""

    def rendered(values, *options):
        code, out, err = template(helm, tmp_path, values, *options)
        assert code == 0, err
        return [raw for raw in yaml.safe_load_all(out) if raw]

    return rendered


def template(helm, folder, values, *options, command=("template", names.MANAGED_BY)):
    file = folder / "values.yaml"
    file.write_text(json.dumps(values))
    return helm(*command, CHART, "--namespace", SYSTEM, "--kube-version", build.DEFAULT_VERSION, "-f", file, *options)


# --- rendered ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
def test_lint_finds_nothing(helm, tmp_path, case):
    code, out, err = template(helm, tmp_path, CASES[case], "--strict", command=("lint",))
    assert code == 0, out + err
    assert "[WARNING]" not in out


def essence(raw):
    """Without what Helm and the chart add to every object."""
    raw = copy.deepcopy(raw)
    raw["metadata"].pop("labels", None)
    return raw


def shipped_kinds():
    return {(raw["kind"], raw["metadata"]["name"]) for raw in shipped("manifests")}


def in_(key, *values):
    return {"key": key, "operator": "In", "values": list(values)}


@pytest.mark.parametrize(
    ("values", "choices"),
    [
        ({"webhook": {"optIn": False}}, Choices()),
        ({}, Choices(namespace_selector="hami.io/webhook=enabled")),
        ({"mode": "native", "webhook": {"optIn": False}}, Choices(mode="native")),
        ({"gate": False, "webhook": {"optIn": False}}, Choices(gate=False)),
        ({"webhook": {"enabled": False}}, Choices(webhook=False)),
        (
            {"schedulerNames": ["default-scheduler", "mine"], "webhook": {"optIn": False, "failurePolicy": "Ignore"}},
            Choices(schedulers=("default-scheduler", "mine"), failure_policy="Ignore"),
        ),
        (
            {
                "webhook": {
                    "namespaceSelector": [in_("tier", "a", "b")],
                    "podSelector": [{"key": "old", "operator": "DoesNotExist"}],
                }
            },
            Choices(namespace_selector="hami.io/webhook=enabled,tier in (a,b)", pod_selector="!old"),
        ),
        ({"webhook": {"optIn": False, "url": "https://h:1/mutate"}}, Choices(webhook_url="https://h:1/mutate")),
    ],
    ids=lambda value: json.dumps(value)[:60] if isinstance(value, dict) else "",
)
def test_what_ships_is_rendered_as_an_installation_without_helm_has_it(render, values, choices):
    wanted = [essence(raw) for raw in manifests(choices) if raw["kind"] != "Namespace"]
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


def test_everything_is_known_to_be_ours(render):
    """By the label that `hami-dra uninstall` goes by; Helm writes its own name into managed-by."""
    for raw in render(EVERYTHING):
        assert raw["metadata"]["labels"][names.PART_OF_LABEL] == names.MANAGED_BY, raw["metadata"]["name"]


def test_in_another_namespace_nothing_names_the_usual_one(helm, tmp_path):
    code, out, err = template(helm, tmp_path, EVERYTHING, "--namespace", "gpus")
    assert code == 0, err
    assert SYSTEM not in out
    assert "system:serviceaccount:gpus:hami-dra-driver" in out


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"mode": "both"}, "mode"),
        ({"vendors": {"nvidia": {"enable": True}}}, "enable"),
        ({"webhook": {"certificate": {"from": "secret"}}}, "webhook.certificate.secretName"),
        ({"image": {"digest": "abc"}}, "digest"),
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
        assert parse(container["args"]), raw["metadata"]["name"]


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
    assert [each["key"] for each in nvidia["tolerations"]] == ["nvidia.com/gpu"]
    assert "tolerations" not in metax
    for pod, cdi in ((nvidia, "/etc/cdi"), (metax, "/var/run/cdi")):
        (container,) = pod["containers"]
        assert {"--root=/data/kubelet", f"--cdi-dir={cdi}"} <= set(container["args"])
        mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        hosts = {volume["name"]: volume["hostPath"]["path"] for volume in pod["volumes"] if "hostPath" in volume}
        assert mounts.items() >= hosts.items()
        assert hosts["registry"] == "/data/kubelet/plugins_registry"


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


def test_packed_it_is_the_same(helm, render, tmp_path):
    """A package holds what the links of the checkout lead to."""
    code, out, err = helm("package", CHART, "--destination", tmp_path)
    assert code == 0, out + err
    (package,) = tmp_path.glob("*.tgz")
    code, out, err = helm("template", names.MANAGED_BY, package, "--namespace", SYSTEM, "--kube-version", "1.37.1")
    assert code == 0, err
    assert [raw for raw in yaml.safe_load_all(out) if raw] == render({})


# --- on a real API server ----------------------------------------------------------------------------------------------------


@pytest.mark.on_1_36
@pytest.mark.parametrize("case", CASES)
def test_the_api_server_takes_every_object(control_plane, render, case):
    api = control_plane.api
    # a dry run finds no namespace that is not there
    api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SYSTEM}})
    objects = render(CASES[case])
    assert len(objects) > 20
    for raw in objects:
        if raw["apiVersion"] == "monitoring.coreos.com/v1":
            continue  # kinds of the Prometheus Operator, which is not on this cluster
        api.create(api.path_of(raw, collection=True), raw, dryRun="All", fieldValidation="Strict")


@pytest.fixture
def story(make_control_plane, helm, tmp_path, render):
    one = Story(make_control_plane(), helm, tmp_path, render({"simulatedFleet": {"enabled": True}}))
    yield one
    one.close()


@pytest.mark.e2e
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "devices", ["of a simulated fleet", pytest.param("of drivers on the nodes", marks=pytest.mark.on_1_36)]
)
def test_installed_used_upgraded_and_taken_out_by_the_scripts_for_kind(story, devices):
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

    down, said = story.take_down()
    assert "done: running pods keep their devices" in said
    story.finish("down.sh", down)
    assert story.left_of_us() == []
