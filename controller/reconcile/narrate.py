"""What the log says about a decision, in HAMi's levels: v4 one line per node, v5 the details. Pure but for logging."""

import logging
from typing import Final

from controller.decide import Decision, Refusal
from hami_dra.api.core import Pod

log = logging.getLogger("hami_dra.decisions")

NODES: Final = logging.DEBUG
"""Level of -v4: one line per node, `NodeFitPod` or `NodeUnfitPod`."""
DETAILS: Final = 5
"""Level of -v5: one line per chosen device, and per node and reason."""


def placed(pod: Pod, decision: Decision) -> None:
    log.info(
        "pod %s: node %s, %d nodes fit, %d do not", pod.key, decision.node, decision.fitting_count, decision.unfit_count
    )
    if log.isEnabledFor(NODES):
        for node, score in decision.fitting:
            log.log(NODES, "NodeFitPod pod=%s node=%s score=%.4f", pod.key, node, score)
    if log.isEnabledFor(DETAILS):
        for device, score in decision.score.devices:
            log.log(DETAILS, "DeviceChosen pod=%s device=%s score=%.4f", pod.key, device, score)


def refused(pod: Pod, refusal: Refusal) -> None:
    log.info("pod %s: %s %s", pod.key, refusal.error or refusal.message, dict(refusal.reasons) or "")
    if log.isEnabledFor(NODES):
        for node, codes in refusal.nodes.items():
            log.log(NODES, "NodeUnfitPod pod=%s node=%s reason=%s", pod.key, node, ", ".join(sorted(codes)))
    if log.isEnabledFor(DETAILS):
        for node, codes in refusal.nodes.items():
            for code, count in sorted(codes.items()):
                log.log(DETAILS, "%s pod=%s node=%s count=%d", code, pod.key, node, count)
