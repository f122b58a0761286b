"""Every error of this library.

::

    IdempotentError
    ├── ConfigurationError            wrong arguments or combinations, found before a message is processed
    │   ├── UnknownCheckerError       a consumer names a checker that the registry does not have
    │   └── MissingExtraError         an optional dependency is not installed (also an ImportError)
    ├── StoreError                    the store did not answer, or answered with an error
    │   ├── StoreUnavailableError     unreachable, refused, connection lost
    │   ├── StoreBusyError            deadlock, lock wait or serialization failure: try again
    │   ├── SchemaError               the tables are missing, differ, or belong to another application
    │   ├── StoreReplacedError        the store was replaced, or lost acknowledged writes
    │   └── CommitUnknownError        the answer to COMMIT was lost, and its result cannot be determined
    ├── MessageError                  this message can never be processed as it is
    │   ├── MissingKeyError           no message id, or the key expression returned no key
    │   ├── UndecodableMessageError   the key or fingerprint expression failed on the message
    │   ├── UndecodableBodyError      the body is not what the handler reads it as (also a ValueError)
    │   │   └── UnfitBodyError        it does not fit the class that annotates the handler's first parameter
    │   ├── FingerprintMismatchError  a message with a known key has other content
    │   └── OutputError               the handler's return value cannot be sent as output
    ├── RunError                      a run cannot continue
    │   ├── RunFencedError            the step is not allowed: another process aborted the run or took it over
    │   ├── RunInputChangedError      the run was begun with other input
    │   ├── RunConflictError          another run holds a key, or another driver the run, and the wait for it ended
    │   ├── UnknownRunError           the ledger has no run of this name
    │   ├── UnpublishedClaimsError    the run claimed other keys than it is about to publish
    │   └── ClaimsExpiredError        the store may have forgotten claims of the run
    ├── InProgressError               another call has the key, or its result cannot be waited for any longer
    ├── DuplicateError                the block of a key that is done must not run again
    ├── ResultNotStoredError          the effect happened, and its result cannot be given again
    ├── DeadKeyError                  the key is DEAD: attempts used up, fatal error, or effect unknown
    ├── HandlerTimeoutError           a handler took longer than its handler_timeout_s (also a TimeoutError)
    ├── HandlerCancelledError         a task that the handler awaited was cancelled, and not the handler's own task
    ├── TransactionEscapedError       a handler tried to end, or to leave, the transaction that holds its key
    ├── DoomedTransactionError        the transaction is lost; nothing was committed, run it again
    └── AdapterError                  a broker, or its client, failed or refused
        ├── PublishError              the broker did not confirm all messages; it says which
        └── UndecodableRecordError    a record could not be decoded; it goes to the adapter's reject target

The first line of each docstring is the default message. No message contains a password of a URL, or a value of a
statement that a database's error quotes.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Self
from urllib.parse import unquote

LONGEST: Final = 10_000
"""How many characters of a text from elsewhere are looked at, and shown."""
# Marks the end of a text that was cut: what a pattern looks for may have stood behind it.
_CUT: Final = "\0"

# Anybody may have sent the texts, so the patterns look at no character more often than a few times. Each begins at a
# word, a line or a mark, which no attempt passes, and does not look for another (?>...) when the first leads nowhere.

# From the colon before the first password of a word to the last @ of it, because passwords contain unquoted ones. The
# second form lacks a slash or a colon: `postgresql:/me:secret@host`, `amqp//me:secret@host`. What Redis calls a user,
# without a colon, is often the password.
_USERINFO: Final = re.compile(
    r"(?<!\S)((?>\S*?(?:"
    r"(?:://|(?:mysql|mariadb|postgres|redis|amqp|stomp|kafka|https?)[\w+]{0,40}:*/[:/]*?)[^:/@\s]*:"
    rf"|rediss?://)))(?:\S+{_CUT}\Z|\S+@)"
)
_PARAMETER: Final = re.compile(
    r"([?&](?=[\w.-]*?(?:password|passwd|passcode|pwd|secret|token))[\w.-]*+=)([^&\s'\"\0]*)", re.IGNORECASE
)
# What SQLAlchemy, PostgreSQL and MySQL quote from a statement.
_PARAMETERS: Final = re.compile(r"\s?\[parameters: (?:.*\](?=\s*\(Background on this error)|.*)", re.DOTALL)
# To the end: a value may have line breaks, and look like what follows it.
_DETAIL: Final = re.compile(r"\s(?:DETAIL|CONTEXT):.*", re.DOTALL)
# What SQLAlchemy adds to the text of a driver; the last one, as a value may look like it.
_STATEMENT: Final = re.compile(
    r"\s\[SQL: (?:(?!\s\[SQL: ).)*\]\s*\(Background on this error at: \S+\)\Z", re.DOTALL
)
_QUOTED: Final = tuple(
    re.compile(
        rf"\A((?>.*?{before}))(?:{quote}.*{_CUT}\Z|{quote}.*{quote}(?={after}))", re.DOTALL | re.MULTILINE
    )
    for before, quote, after in (
        (r"\bDuplicate entry (?=')", "'", " for key "),
        (r"\bvalue: (?=')", "'", " for "),
        (r"\bnear (?=')", "'", " at line"),
        (
            r"\b(?:value:|out of range in|syntax error:|to the value of|time zone:) (?=')",
            "'",
            r"\W{0,4}(?:$|\s\[SQL: )",
        ),
        (r"\b(?:invalid|malformed|out of range|syntax error)\b)(?>.*?: (?=\")", '"', ""),
        (r"\bvalue (?=\")", '"', " is out of range"),
    )
)
_NONE: Final[Mapping[int, str]] = MappingProxyType({})


def mask(text: str) -> str:
    """The text with the passwords of its URLs replaced by `***`."""
    text = _PARAMETER.sub(_masked_parameter, text)
    return _USERINFO.sub(_masked_user, text) if "@" in text or text.endswith(_CUT) else text


def brief(text: str) -> str:
    """At most 10,000 characters of the text, without the passwords of its URLs, or the half of one."""
    return mask(_cut(text)).removesuffix(_CUT)


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else text[:LONGEST] + _CUT


_given: Final[dict[str, str]] = {}


def remember_word(url: str, word: str) -> None:
    """Let messages name a URL by the word that the command line has for it, such as `env:ORDERS_DB`."""
    _given[_place(url)] = word


def forget_words() -> None:
    """Forget these words: the command has ended."""
    _given.clear()


def url_word(url: str) -> str:
    """The URL as a word of a command that a message says to type.

    The word that the command line had for it; else `env:VARIABLE` for one with a password.
    """
    given = _given.get(_place(url))
    return given or (shlex.quote(url) if mask(url) == url else "env:VARIABLE")


def _place(url: str) -> str:
    """Who uses which server where: a checker's URL and its engine's differ in the driver, the options and escapes."""
    scheme, _, place = url.partition("://")
    kind = scheme.removeprefix("transactional+").removeprefix("offsets+").partition("+")[0]
    return f"{kind}://{unquote(place.partition('?')[0])}"


# Functions: Python reads a template like r"\1***" at its first use, which fails while an interpreter shuts down.


def _masked(found: re.Match[str]) -> str:
    return f"{found[1]}***"


def _masked_parameter(found: re.Match[str]) -> str:
    # Its @ may be that behind a password.
    return f"{found[1]}***{'@' if '@' in found[2] else ''}"


def _masked_user(found: re.Match[str]) -> str:
    return f"{found[1]}***@"


def _cut_off(_: re.Match[str]) -> str:
    return _CUT


def without_values(text: str) -> str:
    """The text of an error without passwords, and without the values of a statement that a database's error quotes.

    At most 10,000 characters of it.
    """
    text = _PARAMETERS.sub("", _cut(text))
    found = _STATEMENT.search(text)
    statement = found[0] if found else ""
    text = _DETAIL.sub(_cut_off, text.removesuffix(statement))
    for quoted in _QUOTED:
        text = quoted.sub(_masked, text)
    return mask(text).removesuffix(_CUT) + mask(statement)


class IdempotentError(Exception):
    """Something went wrong in idempotent-consumer."""

    def __init__(self, message: str | None = None) -> None:
        """Use `message`, or the first line of the class docstring."""
        super().__init__(without_values(message or (type(self).__doc__ or "").split("\n", 1)[0]))


class ConfigurationError(IdempotentError):
    """The configuration is invalid."""


class UnknownCheckerError(ConfigurationError):
    """No checker of that name is registered.

    Attributes:
        name: the name; None: it is not shown, because it may be a URL with a password.
    """

    def __init__(self, message: str | None = None, name: str | None = None) -> None:
        """Use `message`, or the first line of the class docstring."""
        super().__init__(message)
        self.name: Final = name


class MissingExtraError(ConfigurationError, ImportError):
    """An optional dependency is not installed."""

    def __init__(self, package: str, extra: str) -> None:
        """Name the missing `package` and the pip command that installs it with its `extra`."""
        super().__init__(f'{package} is not installed. Type: pip install "idempotent-consumer[{extra}]"')
        self._made_of: Final = (package, extra)

    def __reduce__(self) -> tuple[type[Self], tuple[str, str], dict[str, object]]:
        return type(self), self._made_of, vars(self)


class StoreError(IdempotentError):
    """The store failed."""


class StoreUnavailableError(StoreError):
    """The store cannot be reached."""


class StoreBusyError(StoreError):
    """The store is busy: a lock or another transaction blocks the statement. Try again."""


class SchemaError(StoreError):
    """The deduplication tables are missing or differ from the expected ones. Run `idempotent migrate check`."""


class OutboxError(StoreError):
    """An outbox takes no messages: a table is missing, or the user may not write to it. No fault of a message."""


class StoreReplacedError(StoreError):
    """The store was replaced, or has lost acknowledged writes."""


class CommitUnknownError(StoreError):
    """The connection was lost, or an exception came, during COMMIT: whether the transaction committed is unknown."""


class MessageError(IdempotentError):
    """This message can never be processed in its present form."""


class MissingKeyError(MessageError):
    """The message has no key."""


class UndecodableMessageError(MessageError):
    """The message's key or fingerprint could not be computed."""


class UndecodableBodyError(MessageError, ValueError):
    """The message's body cannot be decoded."""


class UnfitBodyError(UndecodableBodyError):
    """The body does not fit the class that annotates the handler's first parameter; the handler did not run."""


class FingerprintMismatchError(MessageError):
    """A message with a known key has other content."""


class OutputError(MessageError):
    """The handler's return value cannot be sent as output."""


class RunError(IdempotentError):
    """The run cannot continue."""


class RunFencedError(RunError):
    """The run is in a state that does not allow this; begin it again."""


class RunInputChangedError(RunError):
    """The run was begun with other input: use one run_id for one unit of work."""


class RunConflictError(RunError):
    """Another run that has not ended holds a key of this run, or another driver has this run."""


class UnknownRunError(RunError):
    """The ledger has no run of this name."""


class UnpublishedClaimsError(RunError):
    """The run claimed another number of keys than it is about to publish: they would be lost."""


class ClaimsExpiredError(RunError):
    """Claims of this run may have expired in the store, so the run must not be committed."""


class InProgressError(IdempotentError):
    """Another call with this key is running. Call again later, with the same key.

    Attributes:
        retry_after_s: seconds after which another call is worth it.
    """

    def __init__(self, message: str | None = None, *, retry_after_s: float = 1.0) -> None:
        """Say when to call again."""
        super().__init__(message)
        self.retry_after_s: Final = retry_after_s


class DuplicateError(IdempotentError):
    """The key is done: the block has run before, and must not run again.

    Attributes:
        value: the value that the first run stored, or None.
    """

    def __init__(self, message: str | None = None, *, value: object = None) -> None:
        """Hand on what the first run stored."""
        super().__init__(message)
        self.value: Final = value


class ResultNotStoredError(IdempotentError):
    """The effect of this key has happened, but its result was not stored, or cannot be read. It does not run again."""


class DeadKeyError(IdempotentError):
    """The key is dead. Resolve it: `idempotent keys resolve KEY --done` or `--retry`."""


class HandlerTimeoutError(IdempotentError, TimeoutError):
    """The handler took longer than its handler_timeout_s, and was cancelled."""


class HandlerCancelledError(IdempotentError):
    """The handler awaited a task or future that was cancelled; catch its CancelledError in the handler."""


class TransactionEscapedError(IdempotentError):
    """A handler tried to end, or to leave, the transaction that holds its deduplication key."""


class DoomedTransactionError(IdempotentError):
    """The transaction was lost before it could commit; none of its changes are stored."""


class AdapterError(IdempotentError):
    """The broker failed."""


class PublishError(AdapterError):
    """The broker did not confirm all messages.

    The broker has confirmed each message that is in neither mapping.

    Attributes:
        refused: the messages that the broker does not have, because it or its client refused them: for each its place
            in the sequence that was published, beginning with 0, and the reason. Another attempt fails too until the
            message, the queue or topic, or a permission is changed.
        unknown: the messages without an answer, in the same form: the broker may have them. Send them again, with the
            same ids.
    """

    def __init__(
        self,
        message: str | None = None,
        *,
        refused: Mapping[int, str] = _NONE,
        unknown: Mapping[int, str] = _NONE,
    ) -> None:
        """Keep the reasons without passwords."""
        super().__init__(message)
        self.refused: Final = {place: without_values(reason) for place, reason in refused.items()}
        self.unknown: Final = {place: without_values(reason) for place, reason in unknown.items()}


class UndecodableRecordError(AdapterError):
    """The record could not be decoded as a message."""


def described(error: BaseException) -> str:
    """`Type: text` of an exception, also of one whose own text cannot be made; without passwords and values."""
    try:
        text = str(error)
    except Exception:  # the application's __str__ raises
        text = "(its message cannot be shown)"
    return without_values(f"{type(error).__name__}: {text}")
