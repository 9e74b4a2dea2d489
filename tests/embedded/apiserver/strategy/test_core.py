"""Every object of the tables is accepted or refused as by the real server, by its recorded answers.

``tests/kubernetes/test_rules_core.py`` sends the same to a real server and keeps the record
current.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.embedded.apiserver.strategy import case_tables

RECORD = json.loads(case_tables.ANSWERS.read_text())


@pytest.mark.parametrize("name", case_tables.TABLES)
async def test_table(name: str, tmp_path: Path) -> None:
    """Status, reason, causes and accepted objects are the real server's."""
    server = await case_tables.embedded_server(tmp_path)
    try:
        answers = case_tables.short(
            await case_tables.table_answers(case_tables.embedded(server), name)
        )
    finally:
        await server.close()
    wrong = {
        label: answer for label, answer in answers.items() if answer != RECORD[name].get(label)
    }
    assert not wrong


async def test_escalation(tmp_path: Path) -> None:
    """A user who may write roles and bindings cannot grant more than they have."""
    server = await case_tables.embedded_server(tmp_path)
    try:
        answers = case_tables.short(
            await case_tables.story_answers(
                case_tables.embedded(server), case_tables.embedded(server, case_tables.JOE)
            )
        )
    finally:
        await server.close()
    assert answers == RECORD[case_tables.STORY]


def test_record_is_complete() -> None:
    """No recorded answer is without a case."""
    tables = {name: {case.label for case in cases} for name, cases in case_tables.TABLES.items()}
    assert {name: set(RECORD[name]) for name in tables} == tables
