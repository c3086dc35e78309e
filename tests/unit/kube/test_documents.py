"""Manifests are read as the API server's tools read them, and what cannot be read is named by file, document and line."""

import pytest

from hami_dra.api.errors import InputError
from hami_dra.kube.documents import BadDocument, read_documents


@pytest.fixture
def read(tmp_path):
    def read(text, name="a.yaml"):
        (tmp_path / name).write_text(text)
        return [document.raw for document in read_documents([tmp_path / name])]

    return read


def test_streams_lists_and_empty_documents(read):
    text = "---\nkind: A\n---\n---\nkind: List\nitems:\n- kind: B\n- {kind: List, items: [{kind: C}]}\n---\n# nothing\n"
    assert [raw["kind"] for raw in read(text)] == ["A", "B", "C"]


def test_items_of_a_typed_list_inherit_kind_and_version(read):
    assert read("apiVersion: v1\nkind: PodList\nitems: [{metadata: {name: a}}]") == [
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}}
    ]


def test_a_kind_that_only_ends_in_list_is_an_object(read):
    assert read("kind: Wishlist\nspec: {}") == [{"kind": "Wishlist", "spec": {}}]


def test_json(read):
    assert read('{"kind": "A", "n": 1}', "a.json") == [{"kind": "A", "n": 1}]
    with pytest.raises(BadDocument, match=r"a\.json, line 2: not JSON"):
        read('{"kind":\n}', "a.json")


@pytest.mark.parametrize(
    ("scalar", "value"),
    [
        ("2026-01-02", "2026-01-02"),
        ("2026-01-02T03:04:05Z", "2026-01-02T03:04:05Z"),
        ("12:30", "12:30"),
        ("1:2.5", "1:2.5"),
        ("=", "="),
        ("1Gi", "1Gi"),
        ("1e3", "1e3"),
        ("0644", 420),
        ("-5", -5),
        ("0x1F", 31),
        ("1.5", 1.5),
        ("yes", True),
        ("~", None),
        ('"1"', "1"),
    ],
)
def test_scalars(read, scalar, value):
    assert read(f"kind: A\nvalue: {scalar}") == [{"kind": "A", "value": value}]


def test_anchors_and_merges(read):
    assert read("kind: A\nx: &x {a: 1, b: 2}\ny: {<<: *x, b: 3}")[0]["y"] == {"a": 1, "b": 3}


def test_aliases_of_aliases_do_not_grow_without_bound(read):
    lines = ["kind: A", "a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [f"a{number}: &a{number} [{', '.join([f'*a{number - 1}'] * 10)}]" for number in range(1, 12)]
    with pytest.raises(BadDocument, match="expand to too much"):
        read("\n".join(lines))


def test_aliases_are_objects_of_their_own(read):
    (raw,) = read("kind: A\nx: &x {a: [1]}\ny: *x")
    raw["x"]["a"].append(2)
    assert raw["y"] == {"a": [1]}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "kind: A\n---\nkind: B\nspec:\n  a: 1\n  a: 2\n",
            r"a\.yaml, document 2, line 6: not YAML: the key 'a' is given twice",
        ),
        ("kind: A\n---\nkind: [B\n", r"a\.yaml, document 2, line \d: not YAML"),
        ("kind: A\n---\n- kind: B\n", r"a\.yaml, line 3: a list, not an object"),
        ("just text", r"a\.yaml, line 1: a str, not an object"),
        ("kind: List\nitems: [1]", r"a\.yaml, line 1: an item of the List is a int, not an object"),
        (
            "kind: A\nx: !!python/object:os.system {}",
            r"a\.yaml, document 1, line 2: not YAML: could not determine a constructor",
        ),
        ("kind: A\nx: \x01", r"a\.yaml, document 1"),
        ("kind: A\nx: &x {y: *x}", r"a\.yaml, document 1: an anchor contains itself"),
    ],
)
def test_what_cannot_be_read_is_named(read, text, message):
    with pytest.raises(BadDocument, match=message):
        read(text)


def test_folders_are_read_recursively_in_name_order(tmp_path):
    for name in ("b.yaml", "a/z.yml", "a/a.json", "a/notes.txt", "c.yaml"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f'{{"kind": "{name}"}}')
    documents = read_documents([tmp_path])
    assert [document.raw["kind"] for document in documents] == ["a/a.json", "a/z.yml", "b.yaml", "c.yaml"]
    assert str(documents[0]) == f"{tmp_path}/a/a.json, document 1"


def test_a_file_that_is_named_is_read_whatever_its_suffix(tmp_path):
    (tmp_path / "pods.txt").write_text("kind: A")
    assert len(read_documents([tmp_path / "pods.txt"])) == 1


def test_files_that_are_not_there_or_not_text(tmp_path):
    with pytest.raises(BadDocument, match="no such file or folder"):
        read_documents([tmp_path / "none.yaml"])
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BadDocument, match="cannot be read"):
        read_documents([tmp_path])


def test_for_a_command_it_is_the_users_error(tmp_path):
    with pytest.raises(InputError, match="no such file or folder"):
        read_documents([tmp_path / "none.yaml"])


def test_keys_are_text_as_in_json(read):
    assert read("labels: {on: x, 1: y, 1.5: z}") == [{"labels": {"true": "x", "1": "y", "1.5": "z"}}]


@pytest.mark.parametrize("key", ["~", "? [1, 2] ", "? {a: 1} "])
def test_a_key_that_is_no_text_is_refused(read, key):
    with pytest.raises(BadDocument, match=r"a\.yaml, document 1, line 2: .* a key is not text; put it in quotes"):
        read("kind: A\nlabels: {" + key + ": x}")
