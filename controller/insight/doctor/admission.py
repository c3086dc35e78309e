"""Checks of the fence and of the webhook."""

from collections.abc import Iterator

from controller.insight.doctor.installed import filling_in, hooks_of, is_out, named
from controller.insight.doctor.model import Finding, Live, Raw, State
from controller.reconcile.fence import (
    carries_fence,
    driver_of,
    is_fence_rule,
    is_fenced_slice,
    is_in_force,
    is_intact,
    rule_names,
    rules_of,
)
from controller.webhook import ADVICE_WEBHOOK, CONVERT_WEBHOOK
from hami_dra.api import kinds, names
from hami_dra.api.printable import some
from hami_dra.api.resource import DeviceTaintRule, ResourceSlice

# --- fence ----------------------------------------------------------------------------------------


def fence(state: State) -> Iterator[Finding]:
    """Check in exclusive mode that every managed driver's fence is in force, and its taint not misused."""
    if is_out(state) or (state.live is None and not _speaks_of_fences(state)):
        return
    published = {item.spec.driver for item in state.objects.slices if item.spec.devices}
    rules = {rule.metadata.name: rule for rule in state.objects.taint_rules}
    by_rules = state.live.serves_taint_rules if state.live is not None else bool(rules)
    for driver in sorted(state.installation.managed & published):
        if by_rules:
            yield from _rule(driver, next(iter(rules_of(driver, rules.get)), None))
        else:
            yield from _open_slices(driver, state.objects.slices)
    for name, rule in sorted(rules.items()):
        if is_fence_rule(rule) and driver_of(name, state.installation.managed) is None:
            selector = rule.spec.device_selector
            driver = (selector.driver if selector is not None else None) or "every driver"
            yield Finding.warning(
                f"DeviceTaintRule {name}",
                f"it puts the fence on devices of {driver}, and no controller manages them: they are never allocated",
                f"start the controller with --manage {driver}, or kubectl delete devicetaintrule {name}",
            )


def _speaks_of_fences(state: State) -> bool:
    """Return whether the state mentions a fence: files may be of a cluster without hami-dra."""
    return any(map(is_fence_rule, state.objects.taint_rules)) or any(map(carries_fence, state.objects.slices))


def _rule(driver: str, rule: DeviceTaintRule | None) -> Iterator[Finding]:
    name = rule.metadata.name if rule is not None else rule_names(driver)[0]
    restart = "the controller puts it back within a second: check that it runs and may write devicetaintrules"
    if rule is None:
        problem = f"it is missing: kube-scheduler may allocate devices of {driver} without the controller"
        yield Finding.error(f"DeviceTaintRule {name}", problem, restart)
    elif not is_intact(rule, driver) and is_in_force(rule, driver):
        yield Finding.warning(
            f"DeviceTaintRule {name}",
            "it is being deleted, and stays in force until the controller has put another one in its place",
            "check that the controller runs and may write devicetaintrules; to remove the fence: hami-dra uninstall",
        )
    elif not is_intact(rule, driver):
        problem = f"it was changed: it does not keep kube-scheduler off all devices of {driver}"
        yield Finding.error(f"DeviceTaintRule {name}", problem, restart)
    elif not _is_proven(rule):
        yield Finding.warning(
            f"DeviceTaintRule {name}",
            "no probe has shown yet that kube-scheduler respects it: no device of "
            f"{driver} is given out until one has, or found none free to show it with",
            "wait some seconds; if it stays while devices are free: "
            f"kubectl describe devicetaintrule {name}, and the controller's log",
        )


def _is_proven(rule: DeviceTaintRule) -> bool:
    """Return whether the rule was proven, like `rules.is_proven` but for the UID, which files may lack."""
    _, _, generation = rule.metadata.annotations.get(names.FENCE_PROVEN, "").partition("/")
    return generation == str(rule.metadata.generation) if rule.metadata.generation else bool(generation)


def _open_slices(driver: str, slices: tuple[ResourceSlice, ...]) -> Iterator[Finding]:
    unfenced = sorted(item.metadata.name for item in slices if item.spec.driver == driver and not is_fenced_slice(item))
    if unfenced:
        yield Finding.error(
            f"ResourceSlice {some(unfenced, 1)}",
            f"devices of {driver} do not carry the taint {names.FENCE_TAINT}: none of them is given out until all of them do",
            "run the driver of the node with --fence auto (its default), and check its log",
        )


# --- webhook --------------------------------------------------------------------------------------


def webhook(state: State) -> Iterator[Finding]:
    live = state.cluster
    if live.admission is None:
        return
    title = f"{kinds.MUTATING_WEBHOOK.name} {names.WEBHOOK}"
    convert = hooks_of(live, kinds.MUTATING_WEBHOOK.name).get(CONVERT_WEBHOOK)
    if convert is None:
        if live.webhook is not None and live.webhook.expected and not is_out(state):
            is_there = named(live, kinds.MUTATING_WEBHOOK.name, names.WEBHOOK) is not None
            yield Finding.error(
                title,
                f"{'it has no webhook ' + CONVERT_WEBHOOK if is_there else 'it is missing'}: pods with old resource names "
                "(nvidia.com/gpu) are not converted, and stay pending",
                "kubectl apply -f manifests/webhook.yaml, or upgrade the Helm release",
            )
        return
    if convert.get("failurePolicy") == "Ignore":
        yield Finding.warning(
            title,
            f"the failurePolicy of {CONVERT_WEBHOOK} is Ignore: while the webhook does not answer, pods with old resource "
            "names are admitted unconverted and stay pending",
            "set webhook.failurePolicy=Fail in the chart, unless that is what you chose",
        )
    if live.webhook is None or live.webhook.certificates_checked:
        from controller.insight.doctor.certificates import certificates  # needs an extra

        yield from certificates(state, live, title, convert)
    yield from _advice(state, live, convert)
    yield from _runtime_classes(live)
    if live.webhook is not None and live.webhook.conversion:
        yield Finding.error(
            title,
            f"a pod with nvidia.com/gpu, created as a dry run, was not converted: {live.webhook.conversion}",
            f"kubectl -n {state.installation.namespace} get pods -l app.kubernetes.io/component=webhook; see the webhook's log",
        )


def _advice(state: State, live: Live, convert: Raw) -> Iterator[Finding]:
    """Check the webhook that warns about pods and workloads as they are applied: nothing fails without it."""
    advice = hooks_of(live, kinds.VALIDATING_WEBHOOK.name).get(ADVICE_WEBHOOK)
    fix = "kubectl apply -f manifests/webhook.yaml, or upgrade the Helm release"
    if advice is None:
        problem = "it is missing: kubectl apply does not warn of misspelt annotations and of pods that will be refused"
    elif advice.get("clientConfig", {}).get("caBundle") != convert.get("clientConfig", {}).get("caBundle"):
        problem = f"its caBundle is not that of {CONVERT_WEBHOOK}: the API server does not trust the webhook, and no warning is shown"
        fix = filling_in(state, live, kinds.VALIDATING_WEBHOOK.name)
    else:
        return
    yield Finding.warning(f"{kinds.VALIDATING_WEBHOOK.name} {names.WEBHOOK}", problem, fix)


def _runtime_classes(live: Live) -> Iterator[Finding]:
    for vendor, name in sorted(live.webhook.missing_runtime_classes.items()) if live.webhook is not None else ():
        yield Finding.error(
            f"RuntimeClass {name}",
            f"it does not exist, and the webhook writes it into pods that ask for devices of {vendor}: the API server refuses "
            "every one of them",
            f"create it with the handler of the vendor's container runtime, or set vendors.{vendor}.podRuntimeClassName in the chart to "
            "one that exists (empty: the nodes' default runtime)",
        )
