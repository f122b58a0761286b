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
    │   ├── FingerprintMismatchError  a message with a known key has other content
    │   └── OutputError               the handler's return value cannot be sent as output
    ├── RunError                      a run cannot continue
    │   ├── RunFencedError            the run's state does not allow the step; usually another process aborted it
    │   ├── RunInputChangedError      the run was begun with other input
    │   ├── RunConflictError          another run holds a key, and the wait for it ended or was not wanted
    │   └── ClaimsExpiredError        the store may have forgotten claims of the run
    ├── DeadKeyError                  the key is DEAD: attempts used up, fatal error, or effect unknown
    ├── TransactionEscapedError       a handler tried to end the transaction that holds its key
    ├── DoomedTransactionError        the transaction is lost; nothing was committed, run it again
    └── AdapterError                  a broker, or its client, failed or refused
        └── UndecodableRecordError    a record could not be decoded; it goes to the adapter's reject target

The first line of each docstring is the default message.
"""

from __future__ import annotations


class IdempotentError(Exception):
    """Something went wrong in idempotent-consumer."""

    def __init__(self, message: str | None = None) -> None:
        """Use `message`, or the first line of the class docstring."""
        super().__init__(message or (type(self).__doc__ or "").split("\n", 1)[0])


class ConfigurationError(IdempotentError):
    """The configuration is invalid."""


class UnknownCheckerError(ConfigurationError):
    """No checker of that name is registered."""


class MissingExtraError(ConfigurationError, ImportError):
    """An optional dependency is not installed."""

    def __init__(self, package: str, extra: str) -> None:
        """Name the missing `package` and the pip command that installs it with its `extra`."""
        super().__init__(f'{package} is not installed. Type: pip install "idempotent-consumer[{extra}]"')


class StoreError(IdempotentError):
    """The store failed."""


class StoreUnavailableError(StoreError):
    """The store cannot be reached."""


class StoreBusyError(StoreError):
    """The store is busy: a lock or another transaction blocks the statement. Try again."""


class SchemaError(StoreError):
    """The deduplication tables are missing or differ from the expected ones. Run `idempotent migrate check`."""


class StoreReplacedError(StoreError):
    """The store was replaced, or has lost acknowledged writes."""


class CommitUnknownError(StoreError):
    """The connection was lost during COMMIT, and whether the transaction committed is unknown."""


class MessageError(IdempotentError):
    """This message can never be processed in its present form."""


class MissingKeyError(MessageError):
    """The message has no key."""


class UndecodableMessageError(MessageError):
    """The message's key or fingerprint could not be computed."""


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
    """Another run that has not ended holds a key of this run."""


class ClaimsExpiredError(RunError):
    """Claims of this run may have expired in the store, so the run must not be committed."""


class DeadKeyError(IdempotentError):
    """The key is dead. Resolve it: `idempotent keys resolve KEY --done` or `--retry`."""


class TransactionEscapedError(IdempotentError):
    """A handler tried to end the transaction that holds its deduplication key."""


class DoomedTransactionError(IdempotentError):
    """The transaction was lost before it could commit; none of its changes are stored."""


class AdapterError(IdempotentError):
    """The broker failed."""


class UndecodableRecordError(AdapterError):
    """The record could not be decoded as a message."""
