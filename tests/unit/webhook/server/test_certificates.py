"""The webhook's certificates: valid for their hosts, renewed in time, shared by replicas, trusted without a gap."""

import base64
import ipaddress
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError

from controller.webhook.server.certificate_sources import ensure_trust
from controller.webhook.server.certificates import BadAuthority, Material, ensure_secret, renewed, signed
from hami_dra.api import kinds
from hami_dra.kube.protocol import Conflict, NotFound, Unavailable
from tests.support.steered_cluster import SteeredCluster

NOW = datetime(2026, 6, 1, tzinfo=UTC)
HOSTS = ("hami-dra-webhook.hami-dra-system.svc", "127.0.0.1")
NAMES = [x509.DNSName(HOSTS[0]), x509.IPAddress(ipaddress.ip_address(HOSTS[1]))]


def trusted(material, authorities=None, *, at=NOW):
    """Whether a client that trusts these authorities accepts the certificate for all hosts."""
    store = Store(x509.load_pem_x509_certificates(authorities or material.authorities))
    leaf = x509.load_pem_x509_certificate(material.certificate)
    for name in NAMES:
        verifier = PolicyBuilder().store(store).time(at).build_server_verifier(name)
        try:
            verifier.verify(leaf, [])
        except VerificationError:
            return False
    return True


def test_a_new_certificate_is_good_for_all_hosts():
    assert trusted(renewed(None, HOSTS, NOW))


def test_nothing_is_renewed_while_all_is_well():
    material = renewed(None, HOSTS, NOW)
    assert renewed(material, HOSTS, NOW + timedelta(days=300)) is material
    assert renewed(material, HOSTS[:1], NOW) is material


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda material: (material, HOSTS, NOW + timedelta(days=310)), id="near its end"),
        pytest.param(lambda material: (material, (*HOSTS, "another.host"), NOW), id="another host"),
        pytest.param(lambda material: (with_(material, certificate=b"x"), HOSTS, NOW), id="unreadable certificate"),
        pytest.param(lambda material: (with_(material, key=b"x"), HOSTS, NOW), id="unreadable key"),
        pytest.param(
            lambda material: (with_(material, key=renewed(None, HOSTS, NOW).key), HOSTS, NOW), id="another's key"
        ),
        pytest.param(
            lambda material: (with_(material, certificate=material.authorities), HOSTS, NOW), id="no server's"
        ),
    ],
)
def test_a_certificate_that_will_not_do_is_made_anew_by_the_same_authority(spoil):
    material = renewed(None, HOSTS, NOW)
    spoilt, hosts, now = spoil(material)
    new = renewed(spoilt, hosts, now)
    assert new.certificate != material.certificate
    assert new.authorities == material.authorities
    assert trusted(new, material.authorities, at=now)


def with_(material, **changes):
    return Material(**{part: changes.get(part, getattr(material, part)) for part in Material.__slots__})


def test_an_authority_near_its_end_is_followed_by_another_that_is_trusted_beside_it():
    old = renewed(None, HOSTS, NOW)
    later = NOW + timedelta(days=9 * 365)
    serving = renewed(with_(old, certificate=b""), HOSTS, later - timedelta(days=730))
    new = renewed(serving, HOSTS, later)
    assert len(x509.load_pem_x509_certificates(new.authorities)) == 2
    assert trusted(new, at=later)
    assert not trusted(new, old.authorities, at=later)
    # a replica that still serves the old certificate is trusted by the new bundle
    assert trusted(serving, new.authorities, at=later - timedelta(days=700))
    after = renewed(new, HOSTS, NOW + timedelta(days=3651))
    assert len(x509.load_pem_x509_certificates(after.authorities)) == 1


@pytest.mark.parametrize("part", ["authorities", "authority_key"])
def test_an_unreadable_authority_is_replaced(part):
    broken = with_(renewed(None, HOSTS, NOW), **{part: b"nonsense"})
    assert trusted(renewed(broken, HOSTS, NOW))


# --- the Secret -----------------------------------------------------------------------------------------------------------


async def ensure(cluster, hosts=HOSTS, now=NOW):
    return await ensure_secret(cluster, "system", "tls", hosts, lambda: now)


@pytest.fixture
async def cluster():
    """With the Secret as it ships: empty."""
    cluster = SteeredCluster()
    await cluster.create(kinds.SECRET, {"metadata": {"name": "tls"}, "type": "Opaque"}, namespace="system")
    return cluster


async def test_replicas_share_one_secret(cluster):
    assert await ensure(cluster) == await ensure(cluster)
    secret = await cluster.get(kinds.SECRET, "tls", "system")
    assert set(secret.data) == {"ca.crt", "ca.key", "tls.crt", "tls.key"}
    assert cluster.requests["create secrets"] == 1


async def test_a_secret_that_is_not_there_is_not_made():
    with pytest.raises(NotFound):
        await ensure(SteeredCluster())


async def test_two_replicas_that_renew_agree(cluster):
    await ensure(cluster)
    later = NOW + timedelta(days=320)
    winner = []

    async def be_faster(request):
        if request.label == "patch secrets" and not winner:
            winner.append(None)
            winner.append(await ensure(cluster, now=later))

    cluster.hooks.append(be_faster)
    assert await ensure(cluster, now=later) == winner[1]


async def test_a_secret_with_nonsense_in_it_is_mended():
    cluster = SteeredCluster()
    await cluster.create(kinds.SECRET, {"metadata": {"name": "tls"}, "data": {"ca.crt": "!"}}, namespace="system")
    assert trusted(await ensure(cluster))


async def test_a_secret_that_never_settles_is_given_up(cluster):
    await ensure(cluster)
    cluster.fail_next(Conflict("changed"), verb="patch", times=99)
    with pytest.raises(Unavailable, match="changes too often"):
        await ensure(cluster, now=NOW + timedelta(days=320))


# --- an authority that somebody else keeps ------------------------------------------------------------------------------------


def test_a_certificate_is_signed_by_the_authority_that_is_given():
    given = renewed(None, HOSTS, NOW)
    first = signed(None, given.authorities, given.authority_key, HOSTS, NOW)
    assert trusted(first)
    assert signed(first, given.authorities, given.authority_key, HOSTS, NOW) is first
    later = signed(first, given.authorities, given.authority_key, HOSTS, NOW + timedelta(days=320))
    assert later.certificate != first.certificate
    assert later.authorities == given.authorities


def test_an_authority_that_is_over_or_does_not_fit_signs_nothing():
    given, other = renewed(None, HOSTS, NOW), renewed(None, HOSTS, NOW)
    for authority, key, now in (
        (given.authorities, other.authority_key, NOW),
        (given.authorities, given.authority_key, NOW + timedelta(days=3651)),
        (b"", b"", NOW),
    ):
        with pytest.raises(BadAuthority):
            signed(None, authority, key, HOSTS, now)


# --- the webhook configuration ----------------------------------------------------------------------------------------------

WEBHOOKS = [
    {"name": "a", "clientConfig": {"service": {"name": "s"}}, "failurePolicy": "Ignore", "futureField": [1]},
    {"name": "b", "clientConfig": {"url": "https://x", "caBundle": "b2xk"}},
]


async def test_every_webhook_trusts_the_authority_and_nothing_else_changes():
    cluster = SteeredCluster()
    await cluster.create(kinds.MUTATING_WEBHOOK, {"metadata": {"name": "w"}, "webhooks": WEBHOOKS})
    assert await ensure_trust(cluster, "w", b"PEM")
    raw = await cluster.get_raw(kinds.MUTATING_WEBHOOK, "w")
    bundle = base64.b64encode(b"PEM").decode()
    assert raw["webhooks"] == [
        {**WEBHOOKS[0], "clientConfig": {"service": {"name": "s"}, "caBundle": bundle}},
        {**WEBHOOKS[1], "clientConfig": {"url": "https://x", "caBundle": bundle}},
    ]
    assert not await ensure_trust(cluster, "w", b"PEM")


async def test_a_change_by_somebody_else_is_kept():
    cluster = SteeredCluster()
    await cluster.create(kinds.MUTATING_WEBHOOK, {"metadata": {"name": "w"}, "webhooks": WEBHOOKS})

    async def change(request):
        if request.verb == "patch":
            cluster.hooks.clear()
            changed = [{**WEBHOOKS[0], "failurePolicy": "Fail"}, WEBHOOKS[1]]
            await cluster.patch(kinds.MUTATING_WEBHOOK, "w", {"webhooks": changed})

    cluster.hooks.append(change)
    assert await ensure_trust(cluster, "w", b"PEM")
    raw = await cluster.get_raw(kinds.MUTATING_WEBHOOK, "w")
    assert raw["webhooks"][0]["failurePolicy"] == "Fail"
    assert raw["webhooks"][0]["clientConfig"]["caBundle"]


async def test_without_a_configuration_the_caller_is_told():
    with pytest.raises(NotFound):
        await ensure_trust(SteeredCluster(), "w", b"PEM")
