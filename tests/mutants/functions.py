"""Mutants of functions and messages that run once."""

from __future__ import annotations

from tests.mutants.table import Mutant

OPERATION = "_engine/operation.py"
SESSION = "_engine/session.py"
INBOX = "messaging/_inbox.py"
ONCE_TESTS = "tests/test_once.py"
ONCE_ATTEMPT_TESTS = "tests/test_once_attempt.py"
ONCE_LEFT_TESTS = "tests/test_once_left.py"
INBOX_TESTS = "tests/messaging/test_inbox.py"
JOINED_TESTS = "tests/messaging/test_inbox_joined.py"

_MUTANTS = (
    Mutant(
        "a cancelled begin forgets nothing",
        SESSION,
        "            self._forget()\n            raise\n",
        "            raise\n",
        ONCE_LEFT_TESTS,
        "test_p7_a_call_cancelled_while_it_begins_forgets_its_claim",
    ),
    Mutant(
        "cancelling the caller stops the work",
        OPERATION,
        "return await runtime.background.apart(self._execute(session, work))",
        "return await self._execute(session, work)",
        ONCE_LEFT_TESTS,
        "test_cancelling_the_caller_does_not_stop_the_work",
    ),
    Mutant(
        "what fails unseen is not told",
        "_engine/background.py",
        "                if error is not None:\n                    _log",
        "                if False:\n                    _log",
        ONCE_LEFT_TESTS,
        "test_what_fails_after_its_caller_left_is_logged",
    ),
    Mutant(
        "a result that cannot be kept lets it run again",
        OPERATION,
        "ended = yield from session.answered(end, Answer(200, (), None))\n",
        "ended = Given()\n",
        ONCE_ATTEMPT_TESTS,
        "test_a_result_that_cannot_be_kept_does_not_make_it_run_again",
    ),
    Mutant(
        "the first caller gets what the function returned",
        "_core/answer.py",
        "    encoded = text.encode()\n    if",
        "    encoded = repr(result).encode()\n    if",
        ONCE_TESTS,
        "test_the_first_caller_too_gets_it_as_json_gives_it_back",
    ),
    Mutant(
        "an interrupted function is left to lapse",
        SESSION,
        "        if self.attempt.finished:\n",
        "        if self.attempt.finished or not isinstance(error, Exception):\n",
        ONCE_ATTEMPT_TESTS,
        "test_of_a_function_that_is_interrupted_nobody_knows_what_it_did",
    ),
    Mutant(
        "the application is not asked",
        OPERATION,
        "                if attempt.asks:\n",
        "                if False:\n",
        ONCE_TESTS,
        "test_or_the_application_is_asked",
        times=2,
    ),
    Mutant(
        "defaults make another call",
        "_engine/function_call.py",
        "        bound.apply_defaults()\n",
        "",
        ONCE_TESTS,
        "test_calls_are_told_apart_by_value",
    ),
    Mutant(
        "objects are compared by their type alone",
        "_core/arguments.py",
        "    fields = _fields(argument)\n",
        "    fields = None\n",
        ONCE_TESTS,
        "test_p5_objects_are_compared_by_their_content",
    ),
    Mutant(
        "arguments are kept that JSON changes",
        "_engine/function_call.py",
        "            same = repr(json.loads(text)) == repr(call)",
        "            same = True",
        ONCE_LEFT_TESTS,
        "test_what_json_does_not_give_back_is_not_kept",
    ),
    Mutant(
        "None is a part of a key",
        "_core/expression.py",
        "        if found is None or (isinstance(found, str) and not found.strip()):\n",
        "        if isinstance(found, str) and not found.strip():\n",
        "tests/core/test_expression.py",
        "test_what_names_nothing_or_changes_is_refused",
    ),
    Mutant(
        "where a part of a key ends does not matter",
        "_core/expression.py",
        "        return text + self._lengths(fields)\n",
        "        return text\n",
        "tests/core/test_expression.py",
        "test_p5_where_a_part_ends_makes_another_key",
    ),
    Mutant(
        "what a model hides is not compared",
        "_core/arguments.py",
        "        return argument.get_secret_value()\n",
        "        return None\n",
        "tests/core/test_arguments.py",
        "test_p5_different_calls_are_different",
    ),
    Mutant(
        "operations share their keys",
        OPERATION,
        """        if self.policy.scope == "tenant":\n""",
        "        if False:\n",
        ONCE_TESTS,
        "test_what_is_written_wrongly_is_told_at_once",
    ),
    Mutant(
        "a task that asks for another try has broken",
        "messaging/celery.py",
        "                attempt.transient()\n",
        "                pass\n",
        "tests/messaging/test_celery.py",
        "test_a_task_that_asks_for_another_try_gets_it_under_block_too",
    ),
    Mutant(
        "a topic that cannot be reached looks like an outage",
        "messaging/_outbox_worker.py",
        "                case Unreachable(error) if row.message.topic not in blamed:\n",
        "                case Unreachable(error):\n",
        "tests/messaging/test_publisher_failures.py",
        "test_a_topic_that_alone_cannot_be_reached_is_to_blame and sqlite",
    ),
    Mutant(
        "a digest may be chosen as an id",
        "_core/key.py",
        " or text.startswith(_DERIVED):",
        ":",
        "tests/core/test_key.py",
        "test_p5_nobody_can_choose_the_digest_of_another_name",
    ),
    Mutant(
        "an unknown outcome is acknowledged",
        INBOX,
        "        case Kind.OUTCOME_UNKNOWN:\n            return Unknown(problem, refusal.of)\n",
        "        case Kind.OUTCOME_UNKNOWN:\n            return Duplicate()\n",
        INBOX_TESTS,
        "test_an_unknown_outcome_is_never_acknowledged",
    ),
    Mutant(
        "the payload is not compared",
        INBOX,
        "canonical.payload(payload)",
        'canonical.payload(b"")',
        INBOX_TESTS,
        "test_p5_another_message_under_the_same_id_is_rejected",
    ),
    Mutant(
        "the recoverer gives up messages",
        OPERATION,
        '        if redelivered and self.policy.recovery == "resume":\n',
        "        if False:\n",
        INBOX_TESTS,
        "test_the_recoverer_leaves_messages_to_their_broker",
    ),
    Mutant(
        "rows of a message that was lost are committed",
        "_engine/outcomes.py",
        "    if not isinstance(outcome, Ran):\n",
        "    if False:\n",
        JOINED_TESTS,
        "test_p2_rows_of_a_delivery_that_lost_its_message_must_be_rolled_back and postgres",
        server="postgres",
    ),
    Mutant(
        "transient rows are committed",
        OPERATION,
        "        if attempt.verdict not in (None, Verdict.KEEP):\n",
        "        if False:\n",
        JOINED_TESTS,
        "test_what_cannot_be_rolled_back_by_a_word_is_misuse and sqlite",
    ),
)

FUNCTIONS = {mutant.name: mutant for mutant in _MUTANTS}
