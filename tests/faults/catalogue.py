"""The faults: each is one change of one file, and breaks one promise of the guarantees.

Long because it is one list.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Fault:
    """A mistake somebody might make.

    Attributes:
        name: what it does.
        file: where.
        right: the text there, once.
        wrong: what the mistake makes of it.
        tests: arguments for pytest: what has to fail.
    """

    name: str
    file: str
    right: str
    wrong: str
    tests: str


_CONTRACT: Final = "tests/checkers/contract"
_STATEMENTS: Final = "idempotent/checkers/sql/statements.py"
_KEYTABLE: Final = "idempotent/checkers/sql/keytable.py"
_PROCESSING: Final = "idempotent/processing/single.py"
_TRANSACTIONAL: Final = "idempotent/checkers/sql/transactional.py"
_UNIT: Final = "idempotent/checkers/sql/unit.py"


FAULTS: Final = (
    # Whose key it is, in SQL
    Fault(
        "SQL: anybody completes a key",
        _STATEMENTS,
        'mine = "key_hash = ? AND owner = ?"',
        'mine = "key_hash = ? AND ? IS NOT NULL"',
        f"{_CONTRACT}/test_sqlite.py -k test_only_the_owner_completes",
    ),
    Fault(
        "SQL: a key is released without asking whose it is",
        _STATEMENTS,
        'f"DELETE FROM {self._table} WHERE key_hash IN {_list(keys)} AND owner = ? AND {IN_PROGRESS}"',
        'f"DELETE FROM {self._table} WHERE key_hash IN {_list(keys)} AND ? IS NOT NULL AND {IN_PROGRESS}"',
        f"{_CONTRACT}/test_sqlite.py -k test_only_the_owner_releases",
    ),
    Fault(
        "SQL: a completed key can be released",
        _STATEMENTS,
        'f"DELETE FROM {self._table} WHERE key_hash IN {_list(keys)} AND owner = ? AND {IN_PROGRESS}"',
        'f"DELETE FROM {self._table} WHERE key_hash IN {_list(keys)} AND owner = ?"',
        f"{_CONTRACT}/test_sqlite.py -k test_a_completed_key_cannot_be_released",
    ),
    Fault(
        "SQL: a lease is renewed for whoever has it now",
        _STATEMENTS,
        'f" WHERE key_hash IN {_list(keys)} AND owner IN {_list(owners)} AND {IN_PROGRESS}"',
        'f" WHERE key_hash IN {_list(keys)} AND ? IS NOT NULL AND {IN_PROGRESS}"',
        f"{_CONTRACT}/test_sqlite.py -k test_a_renewal_gives_nothing_back",
    ),
    Fault(
        "SQL: a take-over keeps the fence",
        _STATEMENTS,
        "SET status = ?, owner = ?, fence = fence + 1,",
        "SET status = ?, owner = ?, fence = fence,",
        f"{_CONTRACT}/test_sqlite.py -k test_a_lapsed_key_is_taken_over_with_a_greater_fence",
    ),
    Fault(
        "SQL: in progress counts as done",
        "idempotent/checkers/judging.py",
        "if stored.status is KeyStatus.DONE:",
        "if stored.status is not KeyStatus.DEAD:",
        f"{_CONTRACT}/test_sqlite.py -k test_a_key_in_progress_is_neither",
    ),
    Fault(
        "SQL: a live lease is taken for a lapsed one",
        "idempotent/checkers/judging.py",
        "if stored.rest_s >= 0:",
        "if stored.rest_s >= 1e9:",
        f"{_CONTRACT}/test_sqlite.py -k test_a_key_in_progress_says_when_to_look_again",
    ),
    Fault(
        "SQL: decisions of a group in another order",
        "idempotent/checkers/sql/claiming.py",
        "return [decisions[request.key.hash] for request in requests]",
        "return [decisions[r.key.hash] for r in sorted(requests, key=lambda r: r.key.hash)]",
        f"{_CONTRACT}/test_sqlite.py -k test_verdicts_line_up",
    ),
    Fault(
        "SQL: completions of a group are taken for granted",
        _KEYTABLE,
        "if execute(connection, statement, params, many=len(hashes) > 1) == len(hashes):",
        "if execute(connection, statement, params) >= 0:",
        f"{_CONTRACT}/test_sqlite.py -k test_completions_line_up",
    ),
    Fault(
        "SQL: releases of a group are taken for granted",
        _KEYTABLE,
        "if deleted == len(hashes):",
        "if deleted:",
        f"{_CONTRACT}/test_sqlite.py -k test_releases_line_up",
    ),
    Fault(
        "SQL: a failure of somebody else's claim is counted",
        _KEYTABLE,
        "if execute(connection, self._sql.lock_mine, mine) != 1:\n            return Released(owned=False)",
        "execute(connection, self._sql.lock_mine, mine)",
        f"{_CONTRACT}/test_sqlite.py -k test_a_failure_of_somebody_else_counts_nothing",
    ),
    Fault(
        "MariaDB: a key that was there has a fence all the same",
        _STATEMENTS,
        'f"IF(LAST_INSERT_ID(0) = 0, {keep}, {keep})"',
        'f"IF(1 = 0, {keep}, {keep})"',
        f"{_CONTRACT}/test_mysql.py -k test_a_completed_key_is_a_duplicate",
    ),
    Fault(
        "MariaDB: every key of a group is ours",
        "idempotent/checkers/sql/claiming.py",
        "elif fence := insert_id(connection, statement, params):",
        "elif fence := insert_id(connection, statement, params) or 1:",
        f"{_CONTRACT}/test_mysql.py -k test_verdicts_line_up",
    ),
    # Garbage
    Fault(
        "gc takes what waits for a person",
        _STATEMENTS,
        'f" (status <> {KeyStatus.IN_PROGRESS_PARK:d} AND lease_until < {now}))"',
        'f" (lease_until < {now}))"',
        f"{_CONTRACT}/test_sqlite.py -k test_a_key_that_waits_to_be_parked_is_never_forgotten",
    ),
    Fault(
        "gc takes live leases",
        _STATEMENTS,
        'f" (status <> {KeyStatus.IN_PROGRESS_PARK:d} AND lease_until < {now}))"',
        'f" (status <> {KeyStatus.IN_PROGRESS_PARK:d}))"',
        f"{_CONTRACT}/test_sqlite.py -k test_a_live_lease_outlives_the_retention",
    ),
    # Whose key it is, in Redis
    Fault(
        "Redis: anybody completes a key",
        "idempotent/checkers/redis/complete.lua",
        "elseif #value < 42 or value:sub(27) ~= body:sub(1, 16) then",
        "elseif #value < 42 then",
        f"{_CONTRACT}/test_redis.py -k test_only_the_owner_completes",
    ),
    Fault(
        "Redis: a claim overwrites",
        "idempotent/checkers/redis/claim.lua",
        "call('SET', key, fresh .. body, 'NX', 'PX', REMEMBER_MS)",
        "call('SET', key, fresh .. body, 'PX', REMEMBER_MS)",
        f"{_CONTRACT}/test_redis.py -k test_a_completed_key_is_a_duplicate",
    ),
    Fault(
        "Redis: anybody releases a key",
        "idempotent/checkers/redis/release.lua",
        "if not value or value:sub(36, 51) ~= body:sub(1, 16) then",
        "if not value then",
        f"{_CONTRACT}/test_redis.py -k test_only_the_owner_releases",
    ),
    Fault(
        "Redis: a failure that is sent again counts again",
        "idempotent/checkers/redis/release.lua",
        "if failure and failure:sub(5, 12) == token then",
        "if false then",
        "tests/checkers/redis/test_lost_answers.py -k test_a_failure_whose_answer_was_lost_is_counted_once",
    ),
    Fault(
        "Redis: a lease is renewed for whoever has it now",
        "idempotent/checkers/redis/renew.lua",
        "if value:sub(36, 51) == ARGV[i] then",
        "if #value > 0 then",
        f"{_CONTRACT}/test_redis.py -k test_a_renewal_gives_nothing_back",
    ),
    Fault(
        "Redis: times of the first key of a group for all",
        "idempotent/checkers/redis/complete.lua",
        "if value == before and body == owner then",
        "if before and body == owner then",
        "tests/checkers/redis/test_time_to_live.py -k test_keys_completed_together_keep_their_own_times",
    ),
    Fault(
        "Redis: whoever completes a key completes those beside it",
        "idempotent/checkers/redis/complete.lua",
        "if value == before and body == owner then",
        "if value == before then",
        f"{_CONTRACT}/test_redis.py -k test_completions_line_up",
    ),
    Fault(
        "Redis: answers that nobody read are the next call's",
        "idempotent/stores/redis/connections.py",
        "            connection.disconnect()\n            self.close()\n            raise",
        "            self._idle.put(connection)\n            raise",
        "tests/checkers/redis/test_streams.py -k an_interruption_meanwhile",
    ),
    # The order of things
    Fault(
        "the key is completed before the effect",
        _PROCESSING,
        "        value = binding.invoke(claim, message)\n    except Exception as error:\n        if binding",
        "        binding.desk.complete(claim)\n        value = binding.invoke(claim, message)\n"
        "    except Exception as error:\n        if binding",
        "tests/guarantees/crash/test_killed.py -k test_between_effect_and_completion_retry",
    ),
    Fault(
        "a store that does not answer has said duplicate",
        "idempotent/processing/unprotected.py",
        "    return unavailable(error)\n\n\ndef run_unprotected",
        "    return Result(Outcome.DUPLICATE)\n\n\ndef run_unprotected",
        "tests/worker/test_holding.py -k test_a_store_that_is_down",
    ),
    Fault(
        "an interrupted handler keeps its key",
        _PROCESSING,
        "    except BaseException:\n        release_quietly(binding, claim)\n        raise\n    return _record(",
        "    except BaseException:\n        raise\n    return _record(",
        "tests/test_consumer.py -k test_what_is_no_exception_frees_the_key",
    ),
    Fault(
        "the lapse of a claim made in a group is an attempt",
        "idempotent/processing/requests.py",
        "_IN_GROUP: Final = KeyStatus.IN_PROGRESS_GROUP",
        "_IN_GROUP: Final = KeyStatus.IN_PROGRESS",
        "tests/guarantees/crash/test_groups_killed.py -k test_a_leased_group_burns_no_attempt",
    ),
    Fault(
        "leases are not renewed",
        "idempotent/checkers/leases.py",
        "        if not claims:\n            return True\n",
        "        return True\n",
        f"{_CONTRACT}/test_memory.py -k test_claims_in_flight_are_renewed",
    ),
    Fault(
        "a completion that the store did not take is forgotten",
        "idempotent/checkers/desk.py",
        "                self._unrecorded.remember(completions)\n",
        "",
        "tests/guarantees/crash/test_answer_lost.py -k test_a_leased_completion_is_offered_again",
    ),
    Fault(
        "a later copy in a group runs too",
        "idempotent/processing/group.py",
        "            if first is member:\n                yield member\n",
        "            if True:\n                yield member\n",
        "tests/processing/test_group.py -k 'own_outcome_in_its_place or copies'",
    ),
    # Transactions
    Fault(
        "a handler commits its transaction",
        "idempotent/checkers/sql/unit.py",
        '            unit.refuse("commit()")\n',
        "            pass\n",
        "tests/checkers/sql/test_escapes.py -k test_a_handler_cannot_end",
    ),
    Fault(
        "a handler's COMMIT without parameters is not seen",
        "idempotent/checkers/sql/unit.py",
        '@event.listens_for(dialect, "do_execute_no_params")\n',
        "\n",
        "tests/checkers/sql/test_escapes.py -k test_a_handler_cannot_end",
    ),
    Fault(
        "a COMMIT without an answer has happened",
        "idempotent/checkers/sql/in_transactions.py",
        "if not self._is_committed(keyed):",
        "if False:",
        "tests/guarantees/crash/test_answer_lost.py -k test_a_commit_that_nothing_proves",
    ),
    Fault(
        "what the database undid is committed",
        _UNIT,
        "        if self.undone:\n            raise DoomedTransactionError",
        "        if False:\n            raise DoomedTransactionError",
        "tests/checkers/sql/test_locks.py -k test_a_deadlock_inside_a_group",
    ),
    Fault(
        "a handler may end its transaction",
        _UNIT,
        "        self.connection.info[_INFO] = self\n",
        "",
        "tests/checkers/sql/test_escapes.py -k test_a_handler_cannot_end",
    ),
    Fault(
        "the key is committed in a transaction of its own",
        "idempotent/checkers/sql/opening.py",
        "DetachedConnections(store.engine, autocommit=False)",
        "DetachedConnections(store.engine, autocommit=True)",
        "tests/checkers/sql/test_transactional.py -k test_an_exception_rolls_effect_and_key_back",
    ),
    Fault(
        "a connection whose commit was refused is used again",
        _UNIT,
        "reusable = self.committed or self._transaction.is_active",
        "reusable = True",
        "tests/checkers/sql/test_transactional.py -k test_a_deferred_constraint_that_fails_at_commit",
    ),
    Fault(
        "an offset is taken before its turn",
        "idempotent/checkers/sql/offset_ledger.py",
        "while count < len(run) and run[count][1].expected == run[count - 1][1].offset + 1:",
        "while count < len(run):",
        "tests/checkers/sql/test_offsets.py",
    ),
    # Keys
    Fault(
        "the parts of a key run into each other",
        "idempotent/keys.py",
        "    return len(data).to_bytes(8) + data\n",
        "    return data\n",
        "tests/test_keys.py -k test_parts_that_read_the_same_when_joined",
    ),
    Fault(
        "keys are compared without their case",
        "idempotent/keys.py",
        "        data = _encoded(message_id)\n",
        "        data = _encoded(message_id).lower()\n",
        "tests/test_keys.py -k test_different_ids",
    ),
    # Acknowledgements
    Fault(
        "the watermark passes what is unfinished",
        "adapters/watermark.py",
        "        while self._order and self._order[0] not in self._unfinished:",
        "        while self._order:",
        "tests/adapters/test_watermark.py",
    ),
    Fault(
        "Kafka commits one offset too many",
        "adapters/kafka/partition.py",
        "return None if last is None else last + 1",
        "return None if last is None else last + 2",
        "tests/adapters/kafka/test_offsets.py -k test_an_offset_is_committed_only_when",
    ),
    Fault(
        "RabbitMQ: acknowledged when it is received",
        "adapters/rabbitmq/session.py",
        "            if self._consuming.ack is AckMode.AUTO:\n                self._acks.finish(tag)\n",
        "            self._acks.finish(tag)\n            self._acks.flush()\n",
        "tests/adapters/rabbitmq/test_contract.py -k test_what_is_not_settled_comes_again",
    ),
    Fault(
        "RabbitMQ: a dead letter is acknowledged before its copy",
        "adapters/rabbitmq/copies.py",
        "        try:\n            copy.publish(session)\n",
        "        try:\n            session.acknowledge(copy.token.tag)\n            copy.publish(session)\n",
        "tests/adapters/rabbitmq/test_copies.py -k test_a_message_whose_copy_has_nowhere_to_go_is_not_acknowledged",
    ),
    Fault(
        "ActiveMQ: a dead letter is acknowledged before its copy",
        "adapters/activemq/settling.py",
        "    def replaced(self, held: Held, copy: CopyOf) -> None:\n        self._confirm(held, copy)\n"
        "        self.done(held)\n\n\nclass Cumulative",
        "    def replaced(self, held: Held, copy: CopyOf) -> None:\n        self.done(held)\n"
        "        self._confirm(held, copy)\n\n\nclass Cumulative",
        "tests/adapters/activemq/test_too_large.py -k test_a_dead_letter_that_is_too_large_stays",
    ),
    Fault(
        "contention is acknowledged",
        "idempotent/outcomes.py",
        "Outcome.IN_PROGRESS: Action.HOLD,",
        "Outcome.IN_PROGRESS: Action.ACK,",
        "tests/worker/test_holding.py -k test_a_message_in_progress_elsewhere_is_held",
    ),
    Fault(
        "a dead letter comes back and its key stays dead",
        "idempotent/redrive.py",
        "if dead and record is not None and not admin.reopen(record):",
        "if False:",
        "tests/test_redrive.py -k test_dead_letters_go_back_and_run",
    ),
    # Forks
    Fault(
        "the children of a fork claim with the tokens of their parent",
        "idempotent/claims.py",
        "in_child(_owners.begin)",
        "",
        "tests/test_forks.py -k test_no_two_claims_have_one_owner",
    ),
)
