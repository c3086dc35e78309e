"""Health, readiness, metrics, logs, settings, and the options of the command."""

import io
import json
import logging
import re

import aiohttp
import pytest
from typer.testing import CliRunner

from controller.cli.main import app, run
from controller.reconcile.observability import decision_logging
from controller.reconcile.runtime.metrics import Metrics
from controller.reconcile.runtime.settings import Mode
from hami_dra import logs
from hami_dra.api.errors import ConfigError
from hami_dra.api.flags import duration
from hami_dra.httpserver import Exposition, serving
from hami_dra.kube.lease_timings import Timings
from tests.support.controller_settings import controller_settings


async def get(port, path):
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}{path}") as response:
        return response.status, await response.text()


async def test_the_server_says_alive_ready_and_counts():
    problems = ["list pods: away"]
    metrics = Metrics()
    metrics.decisions.labels("placed").inc()
    async with serving("127.0.0.1", 0, render=Exposition(metrics).render, unready=lambda: problems) as port:
        assert await get(port, "/healthz") == (200, "ok\n")
        assert await get(port, "/readyz") == (503, "list pods: away\n")
        problems.clear()
        assert await get(port, "/readyz") == (200, "ok\n")
        status, text = await get(port, "/metrics")
        assert status == 200
        assert 'hami_dra_decisions_total{result="placed"} 1.0' in text


@pytest.fixture
def restored_logging():
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    named = {name: logging.getLogger(name).level for name in ("controller", "hami_dra", decision_logging.log.name)}
    yield
    root.handlers[:], root.level = handlers, level
    for name, value in named.items():
        logging.getLogger(name).setLevel(value)


def test_logs_as_json_and_by_level(restored_logging):
    stream = io.StringIO()
    logs.configure(4, logs.LogFormat.JSON, stream)
    decision_logging.log.log(logs.NODES, "NodeFitPod node=%s", "n1")
    decision_logging.log.log(logs.DETAILS, "too much detail")
    logging.getLogger("controller.x").info("things happen")
    logging.getLogger("controller.x").debug("nobody cares")
    logging.getLogger("aiohttp").info("not ours")
    try:
        int("broken")
    except ValueError:
        logging.getLogger("controller.x").exception("went wrong")
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [line["message"] for line in lines] == ["NodeFitPod node=n1", "things happen", "went wrong"]
    assert "ValueError: invalid literal" in lines[2]["exception"]
    assert lines[0]["time"].endswith("Z")


def test_logs_as_text(restored_logging):
    stream = io.StringIO()
    logs.configure(0, logs.LogFormat.TEXT, stream)
    logging.getLogger("controller.x").info("quiet")
    logging.getLogger("controller.x").warning("loud")
    [line] = stream.getvalue().splitlines()
    assert line.endswith("WARNING controller.x: loud")
    logs.configure(5, logs.LogFormat.TEXT, stream)
    decision_logging.log.log(logs.DETAILS, "detail")
    assert " V5 " in stream.getvalue().splitlines()[-1]


def test_settings_that_contradict_each_other():
    with pytest.raises(ConfigError, match="at least one managed driver"):
        controller_settings()
    controller_settings(mode=Mode.NATIVE)
    with pytest.raises(ConfigError, match="write timeout 6 s: at most 5 s"):
        controller_settings(mode=Mode.NATIVE, lease=Timings(duration=30, write_timeout=6.0))
    with pytest.raises(ConfigError, match="commits at once: at least 1"):
        controller_settings(mode=Mode.NATIVE, commits_at_once=0)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("15s", 15), ("1m30s", 90), ("500ms", 0.5), ("2h", 7200), ("7", 7), ("0.5", 0.5), ("1.5s", 1.5)],
)
def test_spans_of_time(text, expected):
    assert duration().read(text) == expected


@pytest.mark.parametrize("text", ["", "s", "10 s", "ten", "-5s", "5d", "1s5"])
def test_what_is_no_span_of_time(text):
    with pytest.raises(ValueError, match=r".* is not a duration"):
        duration().read(text)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--node-policy", "tight"], "--node-policy: 'tight' is not one of binpack"),
        (["--device-policy", "loose"], "'loose' is not one of"),
        (["--manage", "Not A Driver"], "--manage: 'Not A Driver' is not a driver name"),
        (["--quiet-time", "soon"], "--quiet-time: 'soon' is not a duration"),
        (["--lease-duration", "10s"], "raise the duration"),
        (["--lease-duration", "10.5s"], "must be whole seconds"),
        (["--feature-gates", "Nope=true"], "unknown feature gate 'Nope'"),
    ],
)
def test_bad_options_end_with_one_sentence(arguments, message, capsys, restored_logging):
    with pytest.raises(SystemExit) as ended:
        run(["controller", "--kubeconfig", "/nowhere", *arguments])
    assert ended.value.code == 2
    assert re.search(message, capsys.readouterr().err)


@pytest.mark.parametrize("command", ["controller", "uninstall"])
def test_help_shows_examples(command):
    import typer

    from controller.cli.main import register

    own = typer.Typer(rich_markup_mode="markdown", callback=lambda: None)
    register(own, command)
    result = CliRunner().invoke(own, [command, "--help"])
    assert result.exit_code == 0
    assert "Examples" in result.output
    assert f"hami-dra {command}" in result.output
    assert app is not own
