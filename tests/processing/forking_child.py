"""A process whose handler leaves a child behind and is killed in its transaction."""

import os
import signal
import time
from pathlib import Path

from sqlalchemy.orm import Session

from idempotent import Message, Registry
from idempotent.checkers import TransactionalSqlChecker


def die_and_leave_a_child(url: str, table: str, note: str) -> None:
    """Write the child's process id to the file `note`."""

    @Registry().consumer("orders", checker=TransactionalSqlChecker(url, table=table))
    def handle(message: Message, session: Session) -> None:
        session.connection()
        child = os.fork()
        if not child:
            time.sleep(300)
            os._exit(0)
        Path(note).write_text(str(child))
        os.kill(os.getpid(), signal.SIGKILL)

    handle(Message("orders", id="1"))
