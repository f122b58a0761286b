"""Every error of this library.

::

    IdempotentError
    ├── ConfigurationError            wrong arguments or combinations, found before a message is touched
    │   ├── UnknownCheckerError       a consumer names a checker that the registry does not have
    │   └── MissingExtraError         an optional dependency is not installed (also an ImportError)
    ├── StoreError                    the store did not answer, or answered with an error
    │   ├── StoreUnavailableError     unreachable, refused, connection lost
    │   ├── StoreBusyError            deadlock, lock wait or serialization failure: try again
    │   ├── SchemaError               the tables are missing, drifted, or somebody else's
    │   ├── StoreReplacedError        the store is another one, or lost what it had acknowledged
    │   └── CommitUnknownError        the answer to COMMIT was lost and nothing proves either end
    ├── MessageError                  this message can never be processed as it is
    │   ├── MissingKeyError           no message id, or the key expression found nothing
    │   ├── UndecodableMessageError   the key or fingerprint expression failed on the message
    │   ├── FingerprintMismatchError  the same key came with other content
    │   └── OutputError               what its handler returned cannot be sent in its place
    ├── RunError                      a run cannot go on as it is
    │   ├── RunFencedError            the run is in a state that does not allow it; mostly: others aborted it
    │   ├── RunInputChangedError      the run was begun with other input
    │   ├── RunConflictError          another run holds a key, and is not waited for (any longer)
    │   └── ClaimsExpiredError        the store may have forgotten claims of the run
    ├── DeadKeyError                  the key is DEAD: attempts used up, fatal error, or effect unknown
    ├── TransactionEscapedError       a handler tried to end the transaction that holds its key
    ├── DoomedTransactionError        the transaction is lost; nothing was committed, run it again
    └── AdapterError                  a broker, or its client, did not do its part
        └── UndecodableRecordError    what arrived is no message; it goes to the adapter's reject target

The first line of each docstring is the default message.
"""

from __future__ import annotations


class IdempotentError(Exception):
    """Something went wrong in idempotent-consumer."""

    def __init__(self, message: str | None = None) -> None:
        """Use `message`, or the first line of the class docstring."""
        super().__init__(message or (type(self).__doc__ or "").split("\n", 1)[0])


class ConfigurationError(IdempotentError):
    """The configuration cannot work."""


class UnknownCheckerError(ConfigurationError):
    """No checker of that name is registered."""


class MissingExtraError(ConfigurationError, ImportError):
    """An optional dependency is not installed."""

    def __init__(self, package: str, extra: str) -> None:
        """Say which `package` is missing and the pip line that installs the `extra` bringing it."""
        super().__init__(f'{package} is not installed. Type: pip install "idempotent-consumer[{extra}]"')


class StoreError(IdempotentError):
    """The store failed."""


class StoreUnavailableError(StoreError):
    """The store cannot be reached."""


class StoreBusyError(StoreError):
    """The store is busy: a lock or another transaction is in the way."""


class SchemaError(StoreError):
    """The deduplication tables are missing or not as they should be."""


class StoreReplacedError(StoreError):
    """The store is another one, or has lost what it had acknowledged."""


class CommitUnknownError(StoreError):
    """The connection was lost during COMMIT and nothing proves whether it happened."""


class MessageError(IdempotentError):
    """The message cannot be processed as it is."""


class MissingKeyError(MessageError):
    """The message has no key."""


class UndecodableMessageError(MessageError):
    """The message's key or fingerprint could not be computed."""


class FingerprintMismatchError(MessageError):
    """The same key came with other content."""


class OutputError(MessageError):
    """What the handler returned cannot be sent."""


class RunError(IdempotentError):
    """The run cannot go on."""


class RunFencedError(RunError):
    """The run is in a state that does not allow this; begin it again."""


class RunInputChangedError(RunError):
    """The run was begun with other input: a run_id names one unit of work."""


class RunConflictError(RunError):
    """Another run that has not ended holds a key of this one."""


class ClaimsExpiredError(RunError):
    """The store may have forgotten claims of this run, so it must not be committed."""


class DeadKeyError(IdempotentError):
    """The key is dead: a person has to decide."""


class TransactionEscapedError(IdempotentError):
    """A handler tried to end the transaction that its deduplication key lives in."""


class DoomedTransactionError(IdempotentError):
    """The transaction was lost before it could commit; nothing of it is stored."""


class AdapterError(IdempotentError):
    """The broker failed."""


class UndecodableRecordError(AdapterError):
    """What arrived is not a message."""
