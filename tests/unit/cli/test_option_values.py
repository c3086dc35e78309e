"""Bad values of every option of the three programs: one sentence that names the option, before anything is read or connected."""

import re
from enum import StrEnum
from typing import Literal, get_origin

import pytest
import typer

from controller.cli.main import loaded
from tests.support.commands import Typed

PROGRAMS = ("controller", "driver", "webhook")
DURATION = re.compile(r"\d+(ms|s|m|h)")
BAD = {
    "integer": ["-1", "x", "", "1.5", "1e3", "99999999999999999999"],
    "choice": ["no-such-choice", "", "0"],
    "duration": ["", "-1s", "soon", "100000h", "1 s", "1d", "nan", "1e9s", "٣s", "1s2", "\n"],
    "name": ["Foo_Bar", "a b", "-a", "a/b", "../../x", "a\n", "x" * 300, "ä"],
    "path": ["rel", "./x", "a/../b"],
}
NAMES = {"--installation", "--install-namespace", "--scheduler-name", "--node", "--manage", "--certificate-host", "--host", "--vendor", "--machine"}  # fmt: skip
PATHS = {"--root", "--cdi-dir", "--kernel-root", "--device-folder", "--driver-root", "--driver-root-mount", "--library-folder", "--cdi-hook"}  # fmt: skip
OTHERS = {
    "--node-policy": ["x", ""],
    "--device-policy": ["x", "", "spread,spread"],
    "--packing-weights": ["x", "theta=x"],
    "--default": ["x", "a=b"],
    "--feature-gates": ["x", "NoSuchGate=true"],
    "--probe-image": ["", "a b", "-x", "a\nb"],
    "--taint-effect": ["x", "lost=x", "bogus=NoSchedule"],
    "--runtime-class": ["x", "nvidia=A_B"],
    "--instance-uid": ["../../x", "a b", "x" * 64],
    "--dashboard-bind": ["x", "127.0.0.1:70000", "127.0.0.1:x"],
    "--gangs-of": ["x", ""],
    "--legacy-metrics": ["x", ""],
    "--library-log-level": ["x", "10", "-1"],
    "--library-version": ["a b", "../x"],
    "--library-runtime-class": ["A_B", "a b"],
    "--memory-scaling": ["0", "x", "-1", "1/0"],
    "--core-scaling": ["0", "x", "-1", "1/0"],
    "--usage-cache": ["x"],
    "--usage-cache-size": ["x", "1", "100Gi"],
    "--lock-folder": ["x"],
}
FREE = {"--kubeconfig", "--manage-profile", "--dashboard-cert", "--dashboard-key", "--dashboard-grafana", "--cert-file", "--key-file", "--authority-folder",
        "--client-ca-file", "--simulated-faults", "--help"}  # fmt: skip
"""Files, which are read where they are needed, and addresses that only a browser opens."""


def bad_values(option):
    """The values that must be refused; None: nothing is known about the option."""
    name = option.opts[-1]
    if name in FREE or option.is_bool_flag:
        return []
    if name in NAMES:
        return BAD["name"]
    if name in PATHS:
        return BAD["path"]
    if name in OTHERS:
        return OTHERS[name]
    if isinstance(option.default, int):
        return [*BAD["integer"], *(["70000"] if name == "--port" else [])]
    if isinstance(option.default, StrEnum) or get_origin(option.type_descriptor.annotation) is Literal:
        return BAD["choice"]
    if isinstance(option.default, str) and DURATION.fullmatch(option.default):
        return BAD["duration"]
    return None


def options():
    """(program, option) of each option."""
    for program in PROGRAMS:
        command = loaded(program)
        for option in command.get_params(typer.Context(command)):
            yield program, option


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_bad_value_is_refused_by_name_before_anything_is_connected(program, capsys, monkeypatch):
    def connected(*_, **__):
        raise AssertionError("it would run")

    monkeypatch.setattr("hami_dra.kube.http.connect", connected)
    for name in ("NODE_NAME", "POD_UID", "KUBECONFIG"):
        monkeypatch.delenv(name, raising=False)
    hami_dra = Typed(capsys)
    wrong = []
    for own, option in options():
        if own != program:
            continue
        values = bad_values(option)
        assert values is not None, f"{option.opts[-1]}: name its bad values here"
        need = ["--node=n"] if program == "driver" and option.opts[-1] != "--node" else []
        for value in values:
            try:
                ended = hami_dra(program, *need, f"{option.opts[-1]}={value}")
            except AssertionError as error:
                wrong.append((option.opts[-1], value, str(error)))
                continue
            if ended.code != 2 or option.opts[-1] not in ended.stderr or "Traceback" in ended.stderr:
                wrong.append((option.opts[-1], value, ended.code, ended.stderr[-200:]))
    assert wrong == []
