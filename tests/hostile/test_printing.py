"""Nothing that somebody writes into an object forges a line of a log or moves the cursor of a terminal.

The mistakes of tests/fixtures/mistakes, on the cluster of tests/golden/simulate, with hostile text in random fields:
what commands print, what events say and what is logged contains no character that is not printable.
"""

import asyncio
import copy
import io
import json
import logging
import random
from contextlib import suppress
from pathlib import Path

import pytest
import yaml

from controller.cli import status_watch
from controller.cli.seen import seen
from controller.cli.status_view import Selection
from controller.cli.tables import TextLayout
from controller.decide import decide
from controller.insight.manifests import BadManifest
from controller.reconcile.runtime.messages import warning
from hami_dra.api import kinds
from hami_dra.api.printable import escaped, event_note
from hami_dra.kube.documents import read_documents
from hami_dra.logs import LogFormat, configure
from tests.support import manifests
from tests.support.commands import Typed
from tests.support.examples import examples
from tests.support.harness import claim, play, pod

TESTS = Path(__file__).parents[1]
HOSTILE = (
    "x\n2026-01-01T00:00:00.000Z INFO    controller: FORGED\x1b[2J\x1b]0;owned\x07\x9b31m\u202eevil\u2028line\x7f\rover"
)
COMMANDS = (
    ["status"], ["status", "-o", "wide"], ["status", "-o", "json"], ["status", "-o", "yaml"], ["status", "--pending"], ["status", "--quota"],
    ["simulate"], ["simulate", "-o", "json"], ["whatif", "--node-policy", "spread"], ["defrag"], ["doctor"], ["topology"], ["convert"], ["explain"],
    ["slices"],
)  # fmt: skip
READ = {"status", "simulate", "topology"}
"""Commands that show what they can read."""
ROUNDS = examples(2)


def documents():
    paths = [
        TESTS / "golden" / "simulate" / "cluster.yaml",
        *sorted((TESTS / "fixtures" / "mistakes").glob("*/manifest.yaml")),
    ]
    return [each for path in paths for each in yaml.safe_load_all(path.read_text()) if each]


FREE_KEYS = {"labels", "annotations", "parameters", "matchLabels", "nodeSelector", "attributes"}
"""Fields whose keys are texts."""
AMOUNTS = {"capacity", "consumedCapacity", "requests", "limits", "hard", "allocatable", "counters"}
"""Fields of which no command reads anything if a value is no amount."""


def spoilt(value, dice, readable, field=""):
    """The same value with hostile text behind some of its strings; `readable`: where any text may be."""
    if isinstance(value, dict):
        rate = 0 if readable and field not in FREE_KEYS else 0.01
        return {
            f"{key}{HOSTILE}" if dice.random() < rate else key: each
            if readable and key in AMOUNTS and isinstance(each, dict)
            else spoilt(each, dice, readable, key)
            for key, each in value.items()
        }
    if isinstance(value, list):
        return [spoilt(each, dice, readable, field) for each in value]
    if isinstance(value, str) and field not in ("kind", "apiVersion") and dice.random() < 0.06:
        return value + HOSTILE
    return value


def is_read(item):
    try:
        seen(manifests.documents(item))
    except BadManifest:
        return False
    return True


@pytest.fixture(params=range(2 * ROUNDS), ids=lambda number: f"{number}-{'any' if number % 2 else 'readable'}")
def snapshot(request, tmp_path):
    dice, readable = random.Random(request.param), not request.param % 2
    items = [spoilt(copy.deepcopy(each), dice, readable) for each in documents()]
    if readable:
        items = list(filter(is_read, items))
    path = tmp_path / "all.json"
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    return path, items, readable


def unprintable(text):
    return {ascii(char) for char in text if not char.isprintable() and char != "\n"}


def test_what_commands_print_of_hostile_objects(snapshot, capsys):
    path, items, readable = snapshot
    hami_dra = Typed(capsys)
    for command in COMMANDS:
        words = [*command, "--check" if command == ["slices"] else "-f", path]
        if command == ["explain"]:
            words = [*words, next(each["metadata"]["name"] for each in items if each.get("kind") == "Pod")]
        result = hami_dra(*words)
        assert not readable or command[0] not in READ or result.code == 0, result.stderr
        assert not unprintable(result.stdout + result.stderr), command
        assert "\n2026-01-01T" not in result.stdout + result.stderr, command


@pytest.mark.parametrize("snapshot", range(0, 2 * ROUNDS, 2), indirect=True)
@pytest.mark.parametrize("layout", [None, TextLayout(wide=True)], ids=["json", "screen"])
def test_what_a_watch_shows_of_hostile_objects(snapshot, layout, capsys, monkeypatch):
    path, _, _ = snapshot
    state = seen(read_documents([path]))
    view = Selection().of(
        state.inventory, state.of(kinds.RESOURCE_CLAIM), state.of(kinds.POD), state.of(kinds.NODE), state.gang_of()
    )
    shown = []
    monkeypatch.setattr("rich.live.Live.update", lambda _, text, refresh: shown.append(text.plain))

    async def look():
        return view

    async def watched():
        about = look, asyncio.Event(), lambda: [HOSTILE]
        show = status_watch._lines(*about) if layout is None else status_watch._screen(about[0], layout, *about[1:])
        with suppress(TimeoutError):
            await asyncio.wait_for(show, 0.1)

    asyncio.run(watched())
    captured = capsys.readouterr()
    texts = [*shown, captured.err, captured.out if layout is None else ""]
    assert any("gpu-" in text for text in texts)
    for text in texts:
        assert not unprintable(text)
        assert "\n2026-01-01T" not in text


@pytest.mark.parametrize("form", LogFormat)
def test_each_record_is_one_line_of_the_log(form):
    stream = io.StringIO()
    configure(1, form, stream)
    log = logging.getLogger("controller")
    log.info("ResourceClaim %s: there is no such field", HOSTILE)
    log.info("fields", extra={"fields": {HOSTILE: HOSTILE}})
    try:
        int(HOSTILE + "\n" + HOSTILE)
    except ValueError:
        log.exception("deciding on %s", HOSTILE)
    text = stream.getvalue()
    assert not unprintable(text)
    lines = text.splitlines()
    assert sum(not line.startswith("  ") for line in lines) == 3
    if form is LogFormat.JSON:
        first, second, third = map(json.loads, lines)
        assert first["message"] == f"ResourceClaim {HOSTILE}: there is no such field"
        assert (second[HOSTILE], "ValueError" in third["exception"]) == (HOSTILE, True)


def test_events_of_hostile_claims_are_printable_and_short():
    bodies = []

    async def story(harness):
        for number, parameters in enumerate(({HOSTILE: 1}, {"apiVersion": HOSTILE, "kind": HOSTILE})):
            body = claim(f"c{number}", 1)
            opaque = {"driver": "gpu.example.com", "parameters": parameters}
            body["spec"]["devices"]["config"] = [{"opaque": opaque}]
            await harness.add(kinds.RESOURCE_CLAIM, body)
            await harness.add(kinds.POD, pod(f"p{number}", claims=[f"c{number}"], schedulerName="default-scheduler"))
        for number, expression in enumerate((f'"{HOSTILE}" == 1', HOSTILE)):
            body = claim(f"s{number}", 1)
            body["spec"]["devices"]["requests"][0]["exactly"]["selectors"] = [{"cel": {"expression": expression}}]
            await harness.add(kinds.RESOURCE_CLAIM, body)
            await harness.add(kinds.POD, pod(f"q{number}", claims=[f"s{number}"]))
        await harness.sleep(30)
        bodies.extend(await harness.events())

    play(story, nodes=2, decide=decide, probe=False, quiet_time=0.0)
    assert {each["regarding"]["name"] for each in bodies} >= {"q0", "q1"}
    for each in bodies:
        assert each["note"].isprintable()


@pytest.mark.parametrize(
    "text", [HOSTILE * 100, "\u4e2d" * 900, "\x9b" * 1_000, "a" * 1_024, "a" * 1_025, "\ud800" * 600]
)
def test_a_note_is_printable_and_within_the_limit_in_bytes(text):
    for note in (event_note(text), warning("Reason", text).note):
        assert note.isprintable()
        assert len(note.encode()) <= 1_024
        assert note.endswith("...") or note == escaped(text)


def test_an_escaped_document_says_the_same():
    document = {HOSTILE: [HOSTILE, "\U000e0001", "\u4e2d"]}
    text = escaped(json.dumps(document, ensure_ascii=False))
    assert text.isprintable()
    assert json.loads(text) == document
    assert "\u4e2d" in text
