"""The controller makes the claims of converted pods, and templates of those that were converted in files: quickly, once
each, fairly, and no pod holds up another one."""

import asyncio
from collections import Counter
from itertools import pairwise

import msgspec
import pytest

from controller.webhook.convert import convert_pod
from controller.webhook.converted import LegacyConversion
from hami_dra.api import kinds, names
from hami_dra.api.core import Pod
from hami_dra.kube.protocol import Forbidden, Unavailable
from tests.support.harness import SPACE, play

TEMPLATE = kinds.RESOURCE_CLAIM_TEMPLATE


def converted(name, memory=100, namespace=SPACE, unique="", **metadata):
    """`unique`: as by the webhook, else as in a file."""
    limits = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": memory}
    container = {"name": "main", "image": "none", "resources": {"limits": limits}}
    raw = {"metadata": {"name": name, "namespace": namespace, **metadata}, "spec": {"containers": [container]}}
    return convert_pod(raw, namespace, unique=unique).pod


def template_of(pod):
    return pod["spec"]["resourceClaims"][0]["resourceClaimTemplateName"]


def annotated(name, text, refers_to="hami-0000000000000000"):
    """A pod with an annotation of its author's own making."""
    pod = converted(name)
    pod["metadata"]["annotations"][names.CONVERTED_REQUEST] = text
    pod["spec"]["resourceClaims"][0]["resourceClaimTemplateName"] = refers_to
    return pod


async def made(harness):
    return {template.metadata.name for template in (await harness.cluster.list(TEMPLATE)).items}


async def has_claim(harness, name):
    return bool((await harness.pod(name)).status.resource_claim_statuses)


def creations(harness):
    """Counts the attempts to create a template, by name."""
    seen = Counter()

    async def count(request):
        if request.label == "create resourceclaimtemplates":
            seen[request.body["metadata"]["name"]] += 1

    harness.cluster.hooks.append(count)
    return seen


def story(tell, **options):
    play(tell, conversion=LegacyConversion(), **options)


@pytest.mark.parametrize("mode", ["exclusive", "native"])
def test_a_stored_pod_gets_its_template_at_once(mode):
    async def tell(harness):
        await harness.sleep(1)
        began = harness.clock.monotonic()
        await harness.add(kinds.POD, converted("p"))
        await harness.until(lambda: has_claim(harness, "p"))
        assert harness.clock.monotonic() - began < 0.5

    story(tell, mode=mode)


def test_pods_that_need_the_same_template_share_one_request():
    async def tell(harness):
        seen = creations(harness)
        await harness.add(kinds.POD, *(converted(f"p{number}") for number in range(50)))
        await harness.until(lambda: has_claim(harness, "p49"))
        assert list(seen.values()) == [1]

    story(tell)


def test_a_template_that_is_deleted_is_made_again_for_those_that_wait():
    async def tell(harness):
        pod = converted("p")
        harness.cluster.fail_next(Unavailable("no claims now"), verb="create", kind=kinds.RESOURCE_CLAIM, times=3)
        await harness.add(kinds.POD, pod)
        await harness.until(lambda: is_made(harness, pod))
        await harness.cluster.delete(TEMPLATE, template_of(pod), namespace=SPACE)
        await harness.until(lambda: has_claim(harness, "p"))
        assert await made(harness) == {template_of(pod)}

    async def is_made(harness, pod):
        return template_of(pod) in await made(harness)

    story(tell)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nonsense",
        "[" * 20_000,
        '{"requests":[]}',
        '{"requests":' + "[" * 5_000 + "]" * 5_000 + "}",
        '{"requests":[{"name":"a","vendor":"nvidia","cards":' + '{"alternatives":[' * 3_000 + "]}" * 3_000 + "}]}",
    ],
    ids=lambda text: text[:12],
)
def test_an_annotation_that_cannot_be_read_holds_up_nobody(text):
    """H1: it ended the controller, again after each restart."""

    async def tell(harness):
        await harness.add(kinds.POD, annotated("hostile", text), converted("honest"))
        await harness.until(lambda: has_claim(harness, "honest"), seconds=5)
        assert len(await made(harness)) == 1

    story(tell)


def test_an_error_that_nobody_planned_for_holds_up_nobody():
    class Conversion(LegacyConversion):
        def claim_or_template(self, pod):
            if pod.metadata.name == "hostile":
                raise ZeroDivisionError
            return super().claim_or_template(pod)

    async def tell(harness):
        await harness.add(kinds.POD, *(converted("hostile", 7), converted("honest")))
        await harness.until(lambda: has_claim(harness, "honest"), seconds=5)
        assert harness.metric("hami_dra_internal_errors_total", loop="converted claims") >= 1

    play(tell, conversion=Conversion())


def test_nothing_is_made_from_an_annotation_that_describes_another_template():
    async def tell(harness):
        copied = converted("p")["metadata"]["annotations"][names.CONVERTED_REQUEST]
        await harness.add(kinds.POD, annotated("p", copied, refers_to="their-own"))
        await harness.sleep(30)
        assert await made(harness) == set()

    story(tell)


def test_a_refusal_is_an_event_and_the_pauses_double():
    async def tell(harness):
        tries = []

        async def note(request):
            if request.label == "create resourceclaimtemplates":
                tries.append(harness.clock.monotonic())
                raise Forbidden("exceeded quota: count/resourceclaimtemplates")

        harness.cluster.hooks.append(note)
        await harness.add(kinds.POD, converted("p"))
        await harness.sleep(600)
        pauses = [later - earlier for earlier, later in pairwise(tries)]
        assert 8 <= len(tries) <= 14
        assert pauses[-1] > 16 * pauses[0]
        assert "exceeded quota" in (await harness.events("InvalidClaim"))[0]["note"]
        harness.cluster.hooks.clear()
        await harness.until(lambda: has_claim(harness, "p"), seconds=600)

    story(tell)


def test_a_template_of_somebody_else_under_that_name_is_told():
    async def tell(harness):
        pod = converted("p")
        other = {"metadata": {"name": template_of(pod), "namespace": SPACE}, "spec": {"spec": {"devices": {}}}}
        await harness.add(TEMPLATE, other)
        await harness.add(kinds.POD, pod)
        await harness.sleep(5)
        (event,) = await harness.events("InvalidClaim")
        assert f"ResourceClaimTemplate {SPACE}/{template_of(pod)} exists with other content" in event["note"]

    story(tell)


def test_a_template_that_somebody_makes_at_the_same_moment_is_used():
    async def tell(harness):
        pod = converted("p")
        body = LegacyConversion().claim_or_template(msgspec.convert(pod, Pod, strict=False))

        async def be_quicker(request):
            if request.label == "create resourceclaimtemplates":
                harness.cluster.hooks.clear()
                await harness.cluster.create(TEMPLATE, body, namespace=SPACE)

        harness.cluster.hooks.append(be_quicker)
        await harness.add(kinds.POD, pod)
        await harness.until(lambda: has_claim(harness, "p"))
        await harness.sleep(5)
        assert await harness.events("InvalidClaim") == []

    story(tell)


def test_a_tenant_whose_requests_hang_holds_up_nobody():
    """As where an admission webhook of that namespace does not answer."""

    async def tell(harness):
        async def hang(request):
            if request.label == "create resourceclaimtemplates" and request.namespace == "evil":
                await asyncio.sleep(4)
                raise Unavailable("a webhook does not answer")

        harness.cluster.hooks.append(hang)
        await harness.add(kinds.POD, *(converted(f"e{number}", 200 + number, "evil") for number in range(300)))
        await harness.sleep(1)
        await harness.add(kinds.POD, converted("honest"))
        await harness.until(lambda: has_claim(harness, "honest"), seconds=1)

    story(tell)


# --- pods that the webhook converted --------------------------------------------------------------------------------------


def claim_of(pod):
    return pod["spec"]["resourceClaims"][0]["resourceClaimName"]


async def claims(harness):
    return {claim.metadata.name: claim for claim in (await harness.cluster.list(kinds.RESOURCE_CLAIM)).items}


@pytest.mark.parametrize("mode", ["exclusive", "native"])
def test_each_stored_pod_gets_a_claim_of_its_own_at_once(mode):
    pods = [converted(f"p{number}", 100 + number % 3, unique=str(number)) for number in range(30)]

    async def tell(harness):
        await harness.sleep(1)
        began = harness.clock.monotonic()
        await harness.add(kinds.POD, *pods)
        await harness.until(lambda: are_made(harness))
        assert harness.clock.monotonic() - began < 0.5
        assert await made(harness) == set()
        uids = {claim_of(pod): (await harness.pod(pod["metadata"]["name"])).metadata.uid for pod in pods}
        for name, claim in (await claims(harness)).items():
            (owner,) = claim.metadata.owner_references
            assert (owner.kind, owner.uid, owner.controller) == ("Pod", uids[name], True)
            assert claim.metadata.annotations == {names.POD_CLAIM_NAME: "hami"}

    async def are_made(harness):
        return set(await claims(harness)) == {claim_of(pod) for pod in pods}

    story(tell, mode=mode)


def test_a_claim_that_is_deleted_is_made_again_and_goes_with_its_pod():
    async def tell(harness):
        pod = converted("p", unique="1")
        await harness.add(kinds.POD, pod)
        await harness.until(lambda: claims(harness))
        uid = (await claims(harness))[claim_of(pod)].metadata.uid
        await harness.cluster.delete(kinds.RESOURCE_CLAIM, claim_of(pod), namespace=SPACE)
        await harness.until(lambda: is_another(harness, pod, uid))
        await harness.cluster.delete(kinds.POD, "p", namespace=SPACE)
        await harness.sleep(5)
        assert await claims(harness) == {}

    async def is_another(harness, pod, uid):
        claim = (await claims(harness)).get(claim_of(pod))
        return claim is not None and claim.metadata.uid != uid

    story(tell)


def test_a_claim_that_is_refused_is_an_event_and_tried_again():
    async def tell(harness):
        async def refuse(request):
            if request.label == "create resourceclaims":
                raise Forbidden("exceeded quota: count/resourceclaims")

        harness.cluster.hooks.append(refuse)
        pod = converted("p", unique="1")
        await harness.add(kinds.POD, pod)
        await harness.sleep(100)
        (event, *_) = await harness.events("InvalidClaim")
        assert event["note"].startswith(f"its ResourceClaim {SPACE}/{claim_of(pod)} is not made yet: ")
        assert "exceeded quota" in event["note"]
        harness.cluster.hooks.clear()
        await harness.until(lambda: claims(harness), seconds=600)

    story(tell)


@pytest.mark.parametrize("name", ["their-own", "p-hami-0123456789abcdef01"], ids=["plain", "of another request"])
def test_no_claim_is_made_under_a_name_that_the_annotation_does_not_describe(name):
    async def tell(harness):
        pod = converted("p", unique="1")
        pod["spec"]["resourceClaims"][0]["resourceClaimName"] = name
        await harness.add(kinds.POD, pod)
        await harness.sleep(30)
        assert await claims(harness) == {}

    story(tell)


def test_an_annotation_that_was_changed_while_the_pod_waits_is_told():
    """It waited for ever, without an event."""

    async def tell(harness):
        async def refuse(request):
            if request.label == "create resourceclaims":
                raise Unavailable("no claims now")

        harness.cluster.hooks.append(refuse)
        pod, other = converted("p", unique="1"), converted("q", 300, unique="2")
        await harness.add(kinds.POD, pod)
        await harness.sleep(1)
        text = other["metadata"]["annotations"][names.CONVERTED_REQUEST]
        patch = {"metadata": {"annotations": {names.CONVERTED_REQUEST: text}}}
        await harness.cluster.patch(kinds.POD, "p", patch, namespace=SPACE)
        harness.cluster.hooks.clear()
        await harness.sleep(30)
        assert await claims(harness) == {}
        notes = [event["note"] for event in await harness.events("InvalidClaim")]
        assert any(
            f"ResourceClaim {SPACE}/{claim_of(pod)} is not made: its name stands for another" in note for note in notes
        )

    story(tell)


def test_a_claim_of_somebody_else_under_that_name_is_told():
    async def tell(harness):
        pod = converted("p", unique="1")

        async def be_quicker(request):
            if request.label == "create resourceclaims":
                harness.cluster.hooks.clear()
                other = {"metadata": {"name": claim_of(pod), "namespace": SPACE}, "spec": {"devices": {}}}
                await harness.cluster.create(kinds.RESOURCE_CLAIM, other, namespace=SPACE)

        harness.cluster.hooks.append(be_quicker)
        await harness.add(kinds.POD, pod)
        await harness.sleep(5)
        notes = [event["note"] for event in await harness.events("InvalidClaim")]
        assert any(f"ResourceClaim {SPACE}/{claim_of(pod)} exists with other content" in note for note in notes)

    story(tell)
