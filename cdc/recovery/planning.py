"""From what was found to a plan, or to the reason why there can be none now."""

from __future__ import annotations

from cdc.config import Config
from cdc.errors import RefusedError
from cdc.lsn import Version
from cdc.postgres.catalog import ReplicationSlot
from cdc.recovery.findings import Findings
from cdc.recovery.highest_version import Highest
from cdc.recovery.plan import RecoveryAction, RecoveryPlan
from cdc.recovery.topic_actions import TopicAction
from cdc.setup.pipeline_lock import capture_runs
from cdc.setup.steps import Step
from cdc.startup.publication import lacking_tables


def make_plan(config: Config, found: Findings, highest: Highest, *, anyway: bool) -> RecoveryPlan:
    problems = tuple(problem.message for problem in found.problems)
    tables = tuple(sorted(f"{state.schema}.{state.table}" for state in found.tables.values()))
    if not problems and not (anyway and found.progress is not None):
        return RecoveryPlan(problems=(), tables=tables, steps=())
    return RecoveryPlan(
        problems=problems,
        tables=tables,
        steps=tuple(_steps(config, found)),
        notes=tuple(_notes(config, found, highest)),
        refusal=_refusal(config, found, highest),
    )


def _steps(config: Config, found: Findings) -> list[Step]:
    prefix, slot = config.kafka.prefix, config.source.slot
    steps = [Step(RecoveryAction.SET_POLICY, name) for name in found.control_policies]
    steps += [Step(RecoveryAction.FENCE, prefix), Step(RecoveryAction.NOTE, prefix)]
    if found.publication is None:
        steps.append(Step(RecoveryAction.CREATE_PUBLICATION, config.source.publication))
    else:
        lacking = lacking_tables(found.publication, found.chosen)
        steps += [Step(RecoveryAction.ADD_TO_PUBLICATION, str(table)) for table in lacking]
    steps += [Step(RecoveryAction.SET_POLICY, name) for name in found.topics.policies]
    steps += [Step(RecoveryAction.REMAKE_TOPIC, name) for name in found.topics.named(TopicAction.REMAKE)]
    steps += [Step(RecoveryAction.MAKE_TOPIC, name) for name in found.topics.named(TopicAction.MAKE)]
    if found.old_slot is not None and found.progress is not None:
        steps.append(Step(RecoveryAction.DROP_SLOT, found.progress.slot))
    if found.slot is not None:
        steps.append(Step(RecoveryAction.DROP_SLOT, slot))
    return [*steps, Step(RecoveryAction.CREATE_SLOT, slot), Step(RecoveryAction.UPDATE_RECORDS, prefix)]


def _notes(config: Config, found: Findings, highest: Highest) -> list[str]:
    notes = ["changes since capture stopped are not in the topics one by one; the snapshot publishes their result."]
    if config.stores:
        notes.append("stores follow by themselves. Until the snapshot is complete they may have deleted rows.")
    if found.gone:
        notes.append(f"tables that are gone: {', '.join(sorted(found.gone))}; their topics are emptied.")
    if found.old_publication is not None:
        notes.append(f"publication {found.old_publication}, which was used before, is left; drop it by hand.")
    if config.source.messages:
        notes.append("logical messages that were written meanwhile are lost.")
    if highest.silent_stores:
        notes.append(f"stores that do not answer now: {', '.join(highest.silent_stores)}.")
    return notes


def _refusal(config: Config, found: Findings, highest: Highest) -> RefusedError | None:
    for name, slot in ((config.source.slot, found.slot), (_old_name(found), found.old_slot)):
        if slot is not None and (refusal := _slot_refusal(name, slot, found)) is not None:
            return refusal
    if found.progress is None and max(highest.of_topics, highest.of_stores) == Version(0, 0):
        return RefusedError(
            f"Nothing was captured under prefix {config.kafka.prefix}, so that there is nothing to recover.",
            remedy="If [kafka] prefix was changed, set it back. Another prefix is another pipeline, and needs another "
            "[source] slot; `tailrace remove --all` with the old config takes the old one away.",
        )
    if found.progress is None and highest.silent_stores:
        return RefusedError(
            f"The progress record is gone, and {', '.join(highest.silent_stores)} does not say how far it is: "
            "new versions could be below those that it has.",
            remedy="Start that store, or take it out of the config and build it again later.",
        )
    return None


def _old_name(found: Findings) -> str:
    return found.progress.slot if found.progress is not None else ""


def _slot_refusal(name: str, slot: ReplicationSlot, found: Findings) -> RefusedError | None:
    if slot.plugin != "pgoutput" or slot.database != found.database:
        return RefusedError(
            f"Slot {name} belongs to something else: plugin {slot.plugin}, database {slot.database}.",
            remedy="Choose another [source] slot.",
        )
    if slot.active_pid is not None:
        return capture_runs(name, f"process {slot.active_pid} of the server serves it")
    if found.progress is not None and found.progress.system_identifier != found.identity.system_identifier:
        return RefusedError(
            f"On this server, which is not the one that capture read, there is a slot {name} already: another's?",
            remedy=f"Choose another [source] slot, or drop it: select pg_drop_replication_slot('{name}');",
        )
    return None
