"""The catalogue of reason codes: complete, said once, and what the docs say."""

import re
from pathlib import Path

from controller.reasons import CATALOGUE
from hami_dra.vendors import device_codes

ROOT = Path(__file__).parents[3]
PRODUCT = [path.read_text() for root in ("controller", "hami_dra") for path in (ROOT / root).rglob("*.py")]


def test_every_reason_code_has_one_text_of_its_own_in_each_language():
    for language in ("english", "chinese"):
        texts = [getattr(text, language) for text in CATALOGUE.values()]
        assert all(texts)
        assert len({*texts}) == len(texts)


def test_the_table_of_reason_codes_in_the_docs_has_the_codes_of_the_catalogue():
    page = (ROOT / "docs" / "troubleshooting.md").read_text()
    table = page.partition("## Reason codes\n")[2].partition("\n## ")[0]
    codes = re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)
    assert len({*codes}) == len(codes)
    assert {*codes} == {*CATALOGUE}


def test_every_reason_code_has_words():
    codes = {
        value
        for key, value in vars(device_codes).items()
        if re.match(r"(CARD|NODE|NUMA|TOPOLOGY|MODE)_", key) and re.fullmatch(r"[A-Z]\w+", str(value))
    }
    assert codes - set(CATALOGUE) == set()


def test_the_words_of_a_code_stand_in_one_place():
    for entry in CATALOGUE.values():
        assert sum(entry.english in text for text in PRODUCT) <= 1, entry.english
        assert sum(entry.words in text for text in PRODUCT) == 1, entry.words


def test_words_agree_with_a_number():
    entry = CATALOGUE[device_codes.MODE_NOT_FIT]
    assert entry.about("1 device", 1).startswith("1 device is in another mode")
    assert entry.about("2 devices", 2).startswith("2 devices are in another mode")
