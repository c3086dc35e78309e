"""The search for moves: pods that leave room by going elsewhere, where their place is known before. Pure.

Used by `insight.defrag`, which plans for a person, and `reconcile.preemption`, which carries moves out
for a pod that waits.
"""

from controller.moves.movable import Movability, Movable, as_waiting
from controller.moves.places import Places
from controller.moves.search import Cell, Moved, Mover, Moves, MoveTarget
