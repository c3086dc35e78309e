"""Every manifest of examples/ is one that Kubernetes accepts, field by field; what hami-dra makes of them is shown elsewhere."""

from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
OF_CHARTS = {"values.yaml", "production-stack-values.yaml"}
FILES = sorted(path for path in (ROOT / "examples").rglob("*.yaml") if path.name not in OF_CHARTS)

pytestmark = pytest.mark.on_1_36


def test_every_example_is_accepted(api, namespace):
    accepted = 0
    for path in FILES:
        for item in yaml.safe_load_all(path.read_text()):
            if api.is_namespaced(item):
                item["metadata"]["namespace"] = namespace
            # Strict: an unknown or repeated field is an error, not a warning
            answer = api.create(
                api.path_of(item, collection=True),
                item,
                dryRun="All",
                fieldValidation="Strict",
                fieldManager="examples",
            )
            assert answer["kind"] == item["kind"], path
            accepted += 1
    assert accepted > len(FILES)
