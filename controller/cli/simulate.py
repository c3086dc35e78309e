"""Place the pods of a set of manifests and print where they go and why. Nothing is sent to a cluster.

Reads files and folders (recursive, in name order): Nodes, ResourceSlices, DeviceClasses, claims,
templates, pods and workloads. Legacy pods are converted as by the webhook. Pods with spec.nodeName
and allocated claims count as they are; the others are placed in file order, with --preemption by
priority. Without any Node, the nodes that the slices name are assumed to be empty. Notes go to
stderr.

Examples:
    hami-dra simulate -f resourceslices -f deviceclasses -f examples/claims
    hami-dra slices --machine dgx-h100 --with-nodes -o yaml > n1.yaml
    hami-dra simulate -f n1.yaml -f examples/claims -o json --fail-unplaced
    hami-dra simulate -f n1.yaml -f examples/claims --device-policy first-fit
    hami-dra snapshot --to monday.json
    hami-dra simulate -f monday.json --explain trainer-0
    hami-dra simulate -f monday.json -f urgent.yaml --preemption

Exit status: 0 on success, 1 with --fail-unplaced if a pod stayed unplaced, 2 on bad input.
"""

from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from msgspec.structs import replace

from controller.cli.errors import CommandError
from controller.cli.explain_tables import Shown, drawn
from controller.cli.output_options import Printing, print_document
from controller.cli.tables import Line, TextLayout, codes, counted, note, print_lines, tables, without_pod
from controller.settings.placing import PolicyOptions, PreemptionOptions, SimulatedScheduler
from controller.views.columns import Columns, text_column
from hami_dra.api import names
from hami_dra.api.flags import Option

if TYPE_CHECKING:
    from controller.insight.simulation import SimulationReport

Json = dict[str, Any]

_NAMED: Final = 5


def simulate(
    files: Annotated[tuple[Path, ...], Option("File or folder; may be repeated.", flags=("-f", "--filename"))],
    *,
    printing: Printing,
    policies: PolicyOptions,
    scheduler: SimulatedScheduler,
    preempting: PreemptionOptions,
    explained: Annotated[
        str,
        Option(
            "Explain the decision on this pod, NAME or NAMESPACE/NAME, with all pods before it placed, instead of "
            "listing all.",
            flags=("--explain",),
            metavar="POD",
        ),
    ] = "",
    preemption: Annotated[
        bool,
        Option(
            "Preempt: evict running pods of lower priority for pods that find no room, and list them. Pods are then placed "
            "by priority."
        ),
    ] = False,
    fail_unplaced: Annotated[bool, Option("Exit with status 1 if a pod stays unplaced.")] = False,
) -> None:
    from controller.cli.policy_options import simulation_settings
    from controller.cli.progress import Progress
    from controller.insight.simulation import simulate as run
    from hami_dra.kube.documents import read_documents

    settings = replace(
        simulation_settings(policies, scheduler), preemption=preemption, exceeds_budgets=preempting.preemption_pdb
    )
    if explained:
        key = explained if "/" in explained else f"default/{explained}"
        settings = replace(settings, explained=key)
    with Progress() as progress:
        report = run(read_documents(files), settings, partial(progress, "deciding on pods"))
    for text in [*report.notes, *report.notices]:
        note(text)
    if explained:
        _print_explanation(report, settings.explained, printing)
    else:
        pods = (f"pod/{entry['pod']}" for entry in (*report.placements, *report.unplaced))
        printing.show(partial(_lines, report), lambda: pods, report.document)
        if printing.output.is_table and report.unplaced:
            note(f"add --explain {report.unplaced[0]['pod'].removeprefix('default/')} to see why, node by node")
    if fail_unplaced and report.unplaced:
        raise typer.Exit(1)


def _print_explanation(report: "SimulationReport", key: str, printing: Printing) -> None:
    """Print the decision on one pod. Raises CommandError if there was none."""
    found = report.explanation
    if found is None:
        refused = {entry["pod"]: _why(entry) for entry in report.unplaced}
        known = sorted({*refused, *(entry["pod"] for entry in report.placements)})
        there = f"there are {', '.join(known[:_NAMED])}" if known else "the files have no pod to place"
        raise CommandError(f"--explain: {refused.get(key) or f'no Pod {key} was decided on; {there}'}")
    if printing.output.is_table:
        print_lines(drawn(found, Shown(devices=True, when="with the pods before it placed"), printing.layout))
    else:
        print_document(found, printing.output)


def _lines(report: "SimulationReport", layout: TextLayout) -> list[Line]:
    """Return the conclusion, pods that found no node, gangs, and the others with their devices."""
    placed, unplaced = len(report.placements), len(report.unplaced)
    if not placed and not unplaced:
        return [Line("no pod to place in the input")]
    left = f", {unplaced} {'finds' if unplaced == 1 else 'find'} no node" if unplaced else ""
    parts = [Line(f"{counted(placed, 'pod')} placed{left}", "bold")]
    refused = {pod: gang["message"] for gang in report.gangs if gang["message"] for pod in gang["members"]}
    alone = [entry for entry in report.unplaced if refused.get(entry["pod"]) != _why(entry)]
    preempted = [entry for entry in report.preemptions or () if entry["victims"] or entry.get("waitsFor")]
    found = (_UNPLACED, alone), (_PREEMPTED, preempted), (_GANGS, report.gangs), (_PLACED, report.placements)
    return [*parts, *tables(found, layout)]


def _why(entry: Json) -> str:
    return str(entry["error"] or entry["message"])


def _cautions(entry: Json) -> list[str] | str:
    """Return what to know about a plan."""
    notes = [f"exceeds {counted(entry['violations'], 'disruption budget')}"] if entry["violations"] else []
    if entry["isCut"]:
        notes.append("not all choices were tried")
    return notes or ""


_UNPLACED: Final[Columns[Json]] = (
    text_column("unplaced", lambda entry: entry["pod"]),
    text_column("codes", lambda entry: codes(entry["reasons"]), wide=True),
    text_column("why", lambda entry: without_pod(_why(entry), entry["pod"])),
)
_GANGS: Final[Columns[Json]] = (
    text_column("gang", lambda gang: gang["gang"]),
    text_column("placed", lambda gang: str(gang["placed"])),
    text_column("members", lambda gang: str(len(gang["members"]))),
    text_column("mincount", lambda gang: str(gang["minCount"])),
    text_column("domain or reason", lambda gang: gang["message"].removeprefix(f"{gang['gang']}: ") or gang["domain"]),
)
_PREEMPTED: Final[Columns[Json]] = (
    text_column("preemptor", lambda entry: entry["pod"]),
    text_column("node", lambda entry: entry["node"]),
    text_column("victims", lambda entry: entry["victims"] or ""),
    text_column("terminating", lambda entry: entry["waitsFor"] or ""),
    text_column("note", _cautions),
)
_PLACED: Final[Columns[Json]] = (
    text_column("pod", lambda placed: placed["pod"]),
    text_column("node", lambda placed: placed["node"]),
    text_column("claim", lambda placed: [claim["podClaimName"] for claim in placed["claims"]] or ""),
    text_column("score", lambda placed: _scores(placed["score"]), wide=True),
    text_column(
        "devices",
        lambda placed: [_devices(claim["allocation"]["devices"]["results"]) for claim in placed["claims"]] or "",
    ),
)


def _devices(results: Iterable[dict[str, Any]]) -> str:
    parts = []
    for result in results:
        consumed = _of_interest(str(result["driver"]), result.get("consumedCapacity", {}))
        used = " ".join(f"{name}={amount}" for name, amount in sorted(consumed.items()))
        parts.append(result["device"] + (f" ({used})" if used else ""))
    return ", ".join(parts)


def _of_interest(driver: str, consumed: Mapping[str, str]) -> Mapping[str, str]:
    """Return the amounts by which devices are handed out: those of a whole NeuronCore say nothing more."""
    from hami_dra.vendors.registry import quotas_of

    quotas = quotas_of(driver)
    if quotas is None or set(quotas.whole_by) & {names.CAP_MEMORY, names.CAP_CORES}:
        return consumed
    return {name: amount for name, amount in consumed.items() if name in {*quotas.whole_by, names.CAP_SHARES}}


def _scores(score: dict[str, Any]) -> str:
    """Return the scores of the node, without the pod, and of its devices, with the pod."""
    devices = ", ".join(f"{device['score']:.2f}" for device in score["devices"])
    return f"{score['node']:.2f}" + (f" / {devices}" if devices else "")
