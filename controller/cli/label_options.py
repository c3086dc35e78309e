"""Label selectors, as kubectl's `-l` takes them."""

from collections.abc import Callable, Mapping

from controller.cli.errors import CommandError


def label_matcher(selector: str) -> Callable[[Mapping[str, str]], bool]:
    """Return the predicate on labels of `-l`. Raises CommandError."""
    from hami_dra.kube.selectors import InvalidSelector, label_predicate

    try:
        predicate = label_predicate(selector)
    except InvalidSelector as error:
        raise CommandError(f"--selector: {error}") from error
    return lambda labels: predicate({"metadata": {"labels": labels}})
