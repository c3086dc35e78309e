"""Storage objects of a world, and the volumes of its pods."""

from __future__ import annotations

from tests.support.nodefit_worlds.draws import CSI, HOST, OTHER_CSI, REGION, ZONE, ZONES, Draws, Json

_MIGRATED = "storage.alpha.kubernetes.io/migrated-plugins"
_BOUND = "pv.kubernetes.io/bind-completed"
_SELECTED = "volume.kubernetes.io/selected-node"
_BETA_ZONE = "failure-domain.beta.kubernetes.io/zone"
_IN_TREE = {
    "gcePersistentDisk": ("kubernetes.io/gce-pd", "pd.csi.storage.gke.io", "pdName"),
    "awsElasticBlockStore": ("kubernetes.io/aws-ebs", "ebs.csi.aws.com", "volumeID"),
    "azureDisk": ("kubernetes.io/azure-disk", "disk.csi.azure.com", "diskURI"),
    "cinder": ("kubernetes.io/cinder", "cinder.csi.openstack.org", "volumeID"),
}
"""Volumes of in-tree plugins that CSI drivers serve: field → plugin, driver, the field with the volume's id."""


class Storage:
    """`objects` by kind, namespace and name; volumes of pods add to it."""

    def __init__(self, draws: Draws) -> None:
        self.objects: dict[tuple[str, str, str], Json] = {}
        self._draws = draws
        self._migrated = draws.one(list(_IN_TREE))
        if draws.has("volumes", "csi", "local", "zonepv", "rwop", "migrated"):
            self._classes()
            self._drivers()
            self._csi_nodes()
            for number in range(draws.one([0, 1, 3, 5]) if draws.has("local") else 0):
                self._free_local_volume(number)

    # --- objects --------------------------------------------------------------------------------------------------------

    def _add(self, version: str, kind: str, name: str, namespace: str = "", **rest: object) -> Json:
        metadata: Json = {"name": name, **({"namespace": namespace} if namespace else {})}
        metadata |= rest.pop("metadata", {})
        added = {"apiVersion": version, "kind": kind, "metadata": metadata, **rest}
        return self.objects.setdefault((kind, namespace, name), added)

    def _classes(self) -> None:
        draws = self._draws
        topologies: Json = {}
        if draws.maybe(0.5):
            zones = {"key": ZONE, "values": draws.some(ZONES, draws.one([1, 2]))}
            topologies = {"allowedTopologies": [{"matchLabelExpressions": [zones]}]}
            if draws.maybe(0.3):
                disk = {"key": "disk", "values": ["ssd"]}
                topologies["allowedTopologies"].append({"matchLabelExpressions": [disk]})
        provisioner, _, _ = _IN_TREE[self._migrated]
        for name, mode, provided, more in (
            ("now", "Immediate", CSI, {}),
            ("wait", "WaitForFirstConsumer", CSI, topologies),
            ("other", "WaitForFirstConsumer", OTHER_CSI, {}),
            ("local", "WaitForFirstConsumer", "kubernetes.io/no-provisioner", {}),
            ("in-tree", "WaitForFirstConsumer", provisioner, {}),
        ):
            binding = {} if draws.maybe(0.03) else {"volumeBindingMode": mode}
            self._add("storage.k8s.io/v1", "StorageClass", name, provisioner=provided, **binding, **more)

    def _drivers(self) -> None:
        draws = self._draws
        for driver, classes in ((CSI, ["wait", "now"]), (OTHER_CSI, ["other"])):
            if draws.maybe(0.5):
                continue
            spec = {"storageCapacity": draws.maybe(0.6), "attachRequired": True}
            if draws.maybe(0.4):
                spec["preventPodSchedulingIfMissing"] = draws.maybe(0.8)
            self._add("storage.k8s.io/v1", "CSIDriver", driver, spec=spec)
            for number in range(draws.one([0, 1, 3, 4])):
                self._capacity(f"{driver}-{number}", draws.one(classes))

    def _capacity(self, name: str, class_name: str) -> None:
        draws = self._draws
        topology: Json = draws.one(
            [
                {},
                {"matchLabels": {ZONE: draws.one(ZONES)}},
                {"matchExpressions": [{"key": ZONE, "operator": "In", "values": ["z1", "z2"]}]},
                {"matchExpressions": [{"key": ZONE, "operator": "Exists"}]},
            ]
        )
        rest: Json = {"nodeTopology": topology, "capacity": draws.one(["5Gi", "50Gi", "0"])}
        if draws.maybe(0.1):
            del rest[draws.one(list(rest))]
        if draws.maybe(0.4):
            rest["maximumVolumeSize"] = draws.one(["2Gi", "20Gi"])
        if draws.spoilt():
            rest["nodeTopology"] = {"matchExpressions": [{"key": ZONE, "operator": "Near"}]}
        self._add("storage.k8s.io/v1", "CSIStorageCapacity", name, "kube-system", storageClassName=class_name, **rest)

    def _csi_nodes(self) -> None:
        draws = self._draws
        for name in draws.node_names:
            if not (draws.has("csi", "migrated") and draws.maybe(0.85)):
                continue
            plugin, migrated, _ = _IN_TREE[self._migrated]
            drivers = []
            for driver in (CSI, OTHER_CSI, migrated):
                if draws.maybe(0.8):
                    allocatable = {"count": draws.one([0, 1, 2, 3])} if draws.maybe(0.85) else {}
                    found = {"name": driver, "nodeID": name, "topologyKeys": [ZONE]}
                    drivers.append(
                        {**found, **({"allocatable": allocatable} if allocatable or draws.maybe(0.2) else {})}
                    )
            metadata = {"annotations": {_MIGRATED: draws.one([plugin, f"kubernetes.io/x,{plugin}"])}}
            more = {"metadata": metadata} if draws.maybe(0.7) else {}
            self._add("storage.k8s.io/v1", "CSINode", name, spec={"drivers": drivers}, **more)

    def _volume(self, name: str, class_name: str, source: Json, **spec: object) -> Json:
        """`source`: the field of the volume's kind. `spec`: other fields."""
        made: Json = {
            "capacity": {"storage": "10Gi"},
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": class_name,
            "persistentVolumeReclaimPolicy": "Retain",
            "volumeMode": "Filesystem",
            **source,
            **spec,
        }
        phase = "Bound" if "claimRef" in made else "Available"
        return self._add("v1", "PersistentVolume", name, spec=made, status={"phase": phase})

    def _free_local_volume(self, number: int) -> None:
        draws = self._draws
        mode = draws.one(["ReadWriteOnce", "ReadWriteOnce", "ReadWriteMany"])
        source = _local(draws.one(draws.node_names))
        size = draws.one(["5Gi", "10Gi", "20Gi"])
        volume = self._volume(f"free{number}", "local", source, capacity={"storage": size}, accessModes=[mode])
        if draws.maybe(0.2):
            volume["metadata"]["labels"] = {"speed": draws.one(["fast", "slow"])}
        if draws.maybe(0.1):
            volume["spec"]["volumeMode"] = "Block"
        if draws.maybe(0.08):
            # held for a claim that is not there, or not yet bound
            volume["spec"]["claimRef"] = {"namespace": "default", "name": draws.one(["w-p-0", "elsewhere"])}
        if draws.maybe(0.06):
            volume["status"]["phase"] = draws.one(["Released", "Failed", "Pending"])
        if draws.maybe(0.05):
            volume["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"

    def _claim(self, name: str, namespace: str, class_name: str | None, **rest: object) -> str:
        """`rest`: `bound` (name of its volume), `size`, `modes`, `annotations`, `phase`, other fields of metadata. Returns the name."""
        bound, phase, annotations = rest.pop("bound", ""), rest.pop("phase", ""), {}
        annotations |= rest.pop("annotations", {})
        if bound:
            annotations[_BOUND] = "yes"
        spec: Json = {
            "accessModes": rest.pop("modes", ["ReadWriteOnce"]),
            "resources": {"requests": {"storage": rest.pop("size", "8Gi")}},
            "volumeMode": "Filesystem",
        }
        if class_name is not None:
            spec["storageClassName"] = class_name
        if bound:
            spec["volumeName"] = bound
        metadata = {"uid": f"uid-{name}", **({"annotations": annotations} if annotations else {}), **rest}
        status = {"phase": phase or ("Bound" if bound else "Pending")}
        self._add("v1", "PersistentVolumeClaim", name, namespace, metadata=metadata, spec=spec, status=status)
        return name

    def _bound_claim(self, name: str, namespace: str, source: Json, class_name: str = "now", mode: str = "") -> str:
        """A claim and its volume, bound to each other. Returns the claim's name."""
        modes = [mode or "ReadWriteOnce"]
        reference = {"namespace": namespace, "name": name, "uid": f"uid-{name}"}
        volume = f"pv-{name}"
        self._volume(volume, class_name, source, claimRef=reference, accessModes=modes)
        return self._claim(name, namespace, class_name, bound=volume, modes=modes)

    # --- volumes of pods ------------------------------------------------------------------------------------------------

    def volumes(self, pod: Json, node: str = "") -> list[Json]:
        """Return the volumes of a pod. `node`: where it runs; its claims are bound then."""
        draws, namespace = self._draws, pod["metadata"]["namespace"]
        name, waits = pod["metadata"]["name"], not node
        claims: list[str] = []
        if draws.has("rwop") and namespace == "default" and draws.maybe(0.9 if waits else 0.3):
            claims.append(self._bound_claim("only-one", "default", _csi("only-one"), mode="ReadWriteOncePod"))
        if draws.has("csi"):
            claims += self._csi_claims(name, namespace, node)
        if draws.has("zonepv") and (waits or draws.maybe(0.2)):
            claims.append(self._zoned_claim(f"z-{name}", namespace))
        if draws.has("local") and waits:
            claims += self._local_claims(name, namespace)
        if draws.has("migrated"):
            claims += self._migrated_claims(name, namespace, node)
        found = [
            {"name": f"v{number}", "persistentVolumeClaim": {"claimName": claim}}
            for number, claim in enumerate(dict.fromkeys(claims))
        ]
        if draws.has("volumes") and waits and draws.maybe(0.9):
            found.append({"name": "v", **self._odd_volume(pod)})
        if draws.has("inline") and (waits or draws.maybe(0.5)):
            found.append({"name": "inline", **_inline(draws)})
        if draws.spoilt():
            found.append({"name": "unknown", draws.one(["quantumDisk", "csi", "image", "flexVolume"]): {"driver": CSI}})
        return found

    def _csi_claims(self, name: str, namespace: str, node: str) -> list[str]:
        draws, found = self._draws, []
        for number in range(draws.one([0, 1, 1, 2]) if node else draws.one([1, 1, 2])):
            claim = f"d-{name}-{number}"
            if draws.maybe(0.2) and namespace == "default":
                found.append(self._bound_claim("shared", "default", _csi("shared"), mode="ReadWriteMany"))
            elif not node and draws.maybe(0.3):
                found.append(self._claim(claim, namespace, draws.one(["wait", "other"]), size="1Gi"))
            else:
                driver = draws.one([CSI, CSI, OTHER_CSI])
                handle = draws.one([claim, claim, "same-handle"])
                found.append(self._bound_claim(claim, namespace, _csi(handle, driver)))
                if draws.maybe(0.3):
                    self._attachment(f"pv-{claim}", node or draws.one(draws.node_names), driver)
        if draws.maybe(0.1):
            self._attachment("pv-nowhere", draws.one(draws.node_names), CSI)
        return found

    def _attachment(self, volume: str, node: str, driver: str) -> None:
        source: Json = {"persistentVolumeName": volume}
        if self._draws.maybe(0.1):
            source = {"inlineVolumeSpec": {"accessModes": ["ReadWriteOnce"], **_csi(f"handle-{volume}", driver)}}
        spec = {"attacher": driver, "nodeName": node, "source": source}
        name = f"attached-{volume}-{node}"
        self._add("storage.k8s.io/v1", "VolumeAttachment", name, spec=spec, status={"attached": True})

    def _zoned_claim(self, name: str, namespace: str) -> str:
        draws = self._draws
        claim = self._bound_claim(name, namespace, _csi(name))
        metadata = self.objects["PersistentVolume", "", f"pv-{name}"]["metadata"]
        labels = {draws.one([ZONE, ZONE, _BETA_ZONE]): draws.one([*ZONES, "z1__z2", "z3__z1", "__", ""])}
        if draws.maybe(0.3):
            labels[REGION] = "r1"
        metadata["labels"] = labels
        return claim

    def _local_claims(self, name: str, namespace: str) -> list[str]:
        draws = self._draws
        if draws.maybe(0.3):
            source = _local(draws.one([*draws.node_names, "gone"]))
            return [self._bound_claim(f"l-{name}", namespace, source, class_name="local")]
        found = []
        for number in range(draws.one([1, 1, 2])):
            size = draws.one(["4Gi", "8Gi", "15Gi"])
            claim = self._claim(f"w-{name}-{number}", namespace, "local", size=size)
            spec = self.objects["PersistentVolumeClaim", namespace, claim]["spec"]
            if draws.maybe(0.15):
                spec["selector"] = {"matchLabels": {"speed": "fast"}}
            if draws.maybe(0.1):
                spec["accessModes"] = ["ReadWriteMany"]
            if draws.maybe(0.05):
                spec["volumeMode"] = "Block"
            if draws.maybe(0.05) and ("PersistentVolume", "", "free0") in self.objects:
                spec["volumeName"] = "free0"  # asked for by name, not bound yet
            found.append(claim)
        if draws.maybe(0.1) and namespace == "default":
            found.append(self._claim("w-shared", "default", "local", size="4Gi"))
        return found

    def _migrated_claims(self, name: str, namespace: str, node: str) -> list[str]:
        draws = self._draws
        _, _, key = _IN_TREE[self._migrated]
        found = []
        for number in range(draws.one([0, 1, 1, 2]) if node else draws.one([1, 1, 2])):
            claim = f"m-{name}-{number}"
            if not node and draws.maybe(0.3):
                found.append(self._claim(claim, namespace, "in-tree", size="1Gi"))
                continue
            source = {self._migrated: {key: draws.one([claim, "same-disk"])}}
            if self._migrated == "azureDisk":
                source["azureDisk"] |= {"diskName": claim, "kind": "Managed"}
            found.append(self._bound_claim(claim, namespace, source, class_name="in-tree"))
            if draws.maybe(0.4):
                metadata = self.objects["PersistentVolume", "", f"pv-{claim}"]["metadata"]
                metadata["labels"] = {draws.one([ZONE, _BETA_ZONE]): draws.one(ZONES)}
        return found

    def _odd_volume(self, pod: Json) -> Json:
        """A volume in one of the states that a claim can be in, on its way and off it."""
        draws, namespace, name = self._draws, pod["metadata"]["namespace"], pod["metadata"]["name"]
        claim = f"odd-{name}"
        state = draws.one(_STATES)
        match state:
            case "wait":
                self._claim(claim, namespace, "wait", size=draws.one(["1Gi", "4Gi", "30Gi"]))
            case "selected":
                chosen = {_SELECTED: draws.one([*draws.node_names, "gone"])}
                self._claim(claim, namespace, "wait", annotations=chosen)
            case "now" | "in-tree" | "other":
                self._claim(claim, namespace, state)
            case "gone":
                self._claim(claim, namespace, "wait", deletionTimestamp="2026-01-01T00:00:00Z")
            case "lost":
                self._claim(claim, namespace, "now", bound="pv-away", phase=draws.one(["Lost", "Bound"]))
            case "no class":
                self._claim(claim, namespace, draws.one(["unknown", "", None]))
            case "bound":
                self._bound_claim(claim, namespace, {**_csi(claim), **_node_affinity(draws)})
            case "half bound" | "foreign":
                self._bound_elsewhere(claim, namespace, foreign=state == "foreign")
            case "ephemeral":
                return self._ephemeral(pod)
        return {"persistentVolumeClaim": {"claimName": claim}}

    def _bound_elsewhere(self, claim: str, namespace: str, *, foreign: bool) -> None:
        """A claim of that name in another namespace only, or one that names a volume bound to another claim."""
        if foreign:
            self._bound_claim(claim, "red-1" if namespace != "red-1" else "bare", _csi(claim))
            return
        self._claim(claim, namespace, self._draws.one(["wait", "now"]))
        self._bound_claim(f"{claim}-half", namespace, _csi(claim))
        self.objects["PersistentVolumeClaim", namespace, claim]["spec"]["volumeName"] = f"pv-{claim}-half"

    def _ephemeral(self, pod: Json) -> Json:
        """A generic ephemeral volume, whose claim belongs to the pod, to another one, or is not there yet."""
        draws, metadata = self._draws, pod["metadata"]
        if draws.maybe(0.8):
            uid = metadata["uid"] if draws.maybe(0.7) else "uid-other"
            owner = {"apiVersion": "v1", "kind": "Pod", "name": metadata["name"], "uid": uid, "controller": True}
            self._claim(f"{metadata['name']}-v", metadata["namespace"], "wait", size="1Gi", ownerReferences=[owner])
        spec = {"accessModes": ["ReadWriteOnce"], "storageClassName": "wait"}
        spec["resources"] = {"requests": {"storage": "1Gi"}}
        return {"ephemeral": {"volumeClaimTemplate": {"spec": spec}}}


_STATES = (
    *(
        "wait",
        "wait",
        "wait",
        "wait",
        "selected",
        "selected",
        "bound",
        "bound",
        "empty",
        "now",
        "missing",
        "ephemeral",
        "ephemeral",
        "gone",
        "lost",
    ),
    *("no class", "bound", "bound", "half bound", "foreign", "in-tree", "other"),
)


def _csi(handle: str, driver: str = CSI) -> Json:
    return {"csi": {"driver": driver, "volumeHandle": handle}}


def _local(node: str) -> Json:
    requirement = {"key": HOST, "operator": "In", "values": [node]}
    terms = [{"matchExpressions": [requirement]}]
    return {"local": {"path": "/mnt/x"}, "nodeAffinity": {"required": {"nodeSelectorTerms": terms}}}


def _node_affinity(draws: Draws) -> Json:
    if draws.maybe(0.5):
        return {}
    requirement = draws.one(
        [
            {"key": ZONE, "operator": "In", "values": draws.some(ZONES, 2)},
            {"key": "gen", "operator": "Gt", "values": ["1"]},
            {"key": "gen", "operator": "NotIn", "values": ["1"]},
            {"key": "disk", "operator": "Exists"},
        ]
    )
    if draws.spoilt():
        requirement = {"key": "gen", "operator": "Gt", "values": ["many"]}
    return {"nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [requirement]}]}}}


def _inline(draws: Draws) -> Json:
    """A volume in the pod itself, of the kinds that two pods cannot share."""
    only = {"readOnly": True} if draws.maybe(0.4) else {}
    match draws.one(["gce", "aws", "rbd", "iscsi", "azure", "cinder"]):
        case "gce":
            return {"gcePersistentDisk": {"pdName": draws.one(["disk-a", "disk-b"]), **only}}
        case "aws":
            return {"awsElasticBlockStore": {"volumeID": draws.one(["vol-a", "vol-b"]), **only}}
        case "azure":
            return {"azureDisk": {"diskName": "d", "diskURI": draws.one(["uri-a", "uri-b"]), **only}}
        case "cinder":
            return {"cinder": {"volumeID": draws.one(["vol-a", "vol-b"]), **only}}
        case "rbd":
            monitors = draws.some(["m1", "m2"], draws.one([1, 2]))
            pool = {"pool": draws.one(["rbd", "other"])} if draws.maybe(0.5) else {}
            return {"rbd": {"monitors": monitors, "image": draws.one(["i1", "i2"]), **pool, **only}}
        case _:
            iqn = draws.one(["iqn.2026-01.com.example:a", "iqn.2026-01.com.example:b"])
            return {"iscsi": {"targetPortal": "127.0.0.1:3260", "iqn": iqn, "lun": draws.one([0, 1]), **only}}
