"""What every ledger promises, for any store."""

from tests.adapters.spark.ledger.contract.attempts import AttemptsContract
from tests.adapters.spark.ledger.contract.claims import ClaimsContract
from tests.adapters.spark.ledger.contract.pending import PendingContract
from tests.adapters.spark.ledger.contract.runs import RunsContract


class FullContract(RunsContract, AttemptsContract, ClaimsContract, PendingContract):
    """Everything but garbage collection, which Redis does not need."""
