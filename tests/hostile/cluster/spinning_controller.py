"""`hami-dra`, but a decision on a pod whose name begins with `poison` never ends.

A program of the tests: no part of the product can be told to do this. It stands before whatever the controller calls to decide.
"""

import functools

import controller.decide as package
from controller.cli.main import run


def spinning(decide):
    @functools.wraps(decide)
    def spin_or_decide(inventory, request, *rest, **options):
        while request.pod.metadata.name.startswith("poison"):
            pass
        return decide(inventory, request, *rest, **options)

    return spin_or_decide


if __name__ == "__main__":
    for name in ("decide",):
        setattr(package, name, spinning(getattr(package, name)))  # before the controller imports them
    run()
