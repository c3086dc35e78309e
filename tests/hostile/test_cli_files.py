"""Commands that read files end with exit status 2 and a sentence that names file and document, never with a traceback."""

import json

import pytest

from tests.support.commands import Typed

DEEP = "[" * 9_990 + "]" * 9_990
COMMANDS = {
    "status": ["status", "-f"],
    "doctor": ["doctor", "-f"],
    "simulate": ["simulate", "-f"],
    "whatif": ["whatif", "--node-policy", "spread", "-f"],
    "defrag": ["defrag", "-f"],
    "explain": ["explain", "p", "-f"],
    "convert": ["convert", "-f"],
    "topology": ["topology", "-f"],
}
FILES = {
    "deep.json": '{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p"},"spec":' + DEEP + "}",
    "deep.yaml": "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\n---\nkind: Pod\nspec: " + DEEP + "\n",
    "digits.yaml": "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\n---\nkind: Pod\nspec: " + "9" * 5_000 + "\n",
    "surrogate.yaml": 'apiVersion: v1\nkind: Pod\nmetadata: {name: a}\n---\nkind: Pod\nspec: "\\ud800"\n',
}


@pytest.fixture
def hami_dra(capsys):
    return Typed(capsys)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_file_that_cannot_be_read_is_named_with_its_document(hami_dra, tmp_path, command, name):
    file = tmp_path / name
    file.write_text(FILES[name])
    ended = hami_dra(*COMMANDS[command], file)
    assert ended.code == 2, ended.stderr
    assert f"{file}, document " in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("command", ["status", "doctor", "simulate", "whatif", "defrag"])
def test_a_claim_whose_parameters_cannot_be_read_is_named_and_the_rest_is_shown(hami_dra, tmp_path, command):
    parameters = json.loads("[" * 60 + "]" * 60)
    config = [{"opaque": {"driver": "nvidia.hami.io", "parameters": {"a": parameters}}}]
    claim = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "deep", "namespace": "evil"},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu"}}], "config": config}},
    }
    file = tmp_path / "state.json"
    file.write_text(json.dumps(claim))
    ended = hami_dra(*COMMANDS[command], file)
    assert ended.code in (0, 1), ended.stderr
    assert (
        "ResourceClaim evil/deep: spec.devices.config[0].opaque.parameters: nested more than 50 levels" in ended.stderr
    )
